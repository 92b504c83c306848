"""From profile, host and job to the plan."""

from __future__ import annotations

from collections.abc import Collection

from launcher.planning.allocation import allocation, nodes
from launcher.planning.image_plan import Sources, image
from launcher.planning.ladder import TOKENS, LadderInputs, PrecisionRequest, ladder
from launcher.planning.split import split
from launcher.planning.wheel_choice import UNKNOWN, Site
from launcher.values.environment import Environment
from launcher.values.host import Host
from launcher.values.job import Batch, Job
from launcher.values.model import Model
from launcher.values.plan import Plan, Source
from launcher.values.precision import Platform
from launcher.values.profile import Profile


def plan(
    profile: Profile,
    host: Host,
    job: Job,
    asked: PrecisionRequest = "auto",
    runtime: str = "native",
    sources: Sources | None = None,
    *,
    site: Site = UNKNOWN,
    environment: Environment | None = None,
    model: Model | None = None,
    platform: Platform | None = None,
    rehearsed_on: Profile | None = None,
) -> Plan:
    """Return the plan. Pure: the same inputs give the same bytes. `sources` are images', for docker.

    `site` is what is known of the host, `environment` what is to be made there for a native run, `asked` is the precision,
    `model` what is known of the job's, `platform` of the host's software. `rehearsed_on` is the CPU on which a card's
    precision and split are tried. Raises RefusedError when the card excludes the precision
    asked for, or a container, or the cards cannot share the global batch.
    """
    case = ladder_inputs(profile, job, model, platform)
    rungs = ladder(case, asked).rungs
    data = {name: source(value) for name, value in job.data if value is not None}
    batch = split(profile, job.batch, model, job.method, rungs[0], case.tokens)
    return Plan(
        job=job.name,
        host=host.name,
        profile=profile,
        rehearsed=rehearsed_on is not None,
        runtime=runtime,
        image=image(rehearsed_on or profile, job, host.build, sources, site) if runtime == "docker" else None,
        environment=environment,
        host_environment=host.environment,
        command=job.command,
        requirements=job.requirements,
        model=source(job.model) if job.model is not None else None,
        model_facts=model,
        data=data,
        method=job.method,
        steps=job.steps,
        seed=job.seed,
        save_every_steps=job.save_every_steps,
        save_every_minutes=job.save_every_minutes,
        keep_checkpoints=job.keep_checkpoints,
        loader_workers=job.loader_workers,
        settings=job.settings,
        secrets=tuple(sorted(set(job.secrets))),
        ladder=rungs,
        split=batch,
        nodes=nodes(batch),
        allocation=allocation(profile, is_rehearsed=rehearsed_on is not None),
        attempts=job.attempts,
        restart=job.restart,
        hang_minutes=job.hang_minutes,
        time_limit_minutes=job.time_limit_minutes,
        stop_grace_s=job.stop_grace_s,
    )


def job_of(plan: Plan) -> Job:
    """Return a job that this plan could be of, as far as a plan tells: paths are as they were written."""
    special = {"image", "model", "data"}
    alike = {key: getattr(plan, key) for key in Job.model_fields if key in {*Plan.model_fields} - special}
    return Job.model_validate(
        {
            **alike,
            "name": plan.job,
            "model": written(plan.model) if plan.model is not None else None,
            "batch": Batch(global_size=plan.split.global_batch, micro=plan.split.micro_batch),
            "data": {name: written(one) for name, one in plan.data.items()},
        }
    )


def changed(parent: Plan, job: Job, keys: Collection[str], host: str) -> Plan:
    """Return the plan of a run that goes on from a checkpoint of another: the parent's, but for some keys of the job.

    `job` is the parent's with the changes, `keys` are what was changed, as in a job's file; of a key that no plan has
    nothing comes of it. `host` is what the host is called here. Another micro-batch, or another length of samples, gives
    another split, never another global batch.
    """
    values = {key: getattr(job, key) for key in {key.split(".")[0] for key in keys} & {*Plan.model_fields}}
    tokens = ladder_inputs(parent.profile, job, parent.model_facts, None).tokens
    before = ladder_inputs(parent.profile, job_of(parent), parent.model_facts, None).tokens
    if "batch.micro" in keys or tokens != before:
        batch = Batch(global_size=parent.split.global_batch, micro=job.batch.micro)
        model, first = parent.model_facts, parent.ladder[0]
        values["split"] = split(parent.profile, batch, model, parent.method, first, tokens)
    return Plan.model_validate({**parent.model_dump(), **values, "job": job.name, "host": host})


def ladder_inputs(profile: Profile, job: Job, model: Model | None, platform: Platform | None) -> LadderInputs:
    """Return what a job's ladder on a card is made for; a sample's length is its setting `max_length`."""
    length = job.settings.get("max_length")
    tokens = length if type(length) is int and length > 0 else TOKENS
    return LadderInputs(
        profile, job.method, model, platform or Platform(), job.attention, job.compile, tokens
    )


def source(written: str) -> Source:
    """Tell a path here (`./x`, `/x`, `~/x`) from one on the host (`host:/x`) and from a word for the script.

    `hub:org/name` is the word `org/name`, whatever it looks like.
    """
    if written.startswith("host:"):
        return Source(kind="host", value=written.removeprefix("host:"))
    if written.startswith(("./", "../", "/", "~")) or written in (".", ".."):
        return Source(kind="local", value=written)
    return Source(kind="name", value=written.removeprefix("hub:"))


def written(meant: Source) -> str:
    """Return how a source is written in a job."""
    prefix = {"host": "host:", "local": "", "name": "hub:"}[meant.kind]
    return f"{prefix}{meant.value}"
