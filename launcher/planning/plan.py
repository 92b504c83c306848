"""From profile, host and job to the plan."""

from __future__ import annotations

from typing import Literal

from launcher.planning.image import image
from launcher.planning.ladder import TOKENS, Asked, Case, ladder
from launcher.planning.split import split
from launcher.spec.host import Host
from launcher.spec.job import Job
from launcher.spec.model import Model
from launcher.spec.plan import Plan, Source
from launcher.spec.precision import Platform
from launcher.spec.profile import Profile


def plan(
    profile: Profile,
    host: Host,
    job: Job,
    asked: Asked = "auto",
    runtime: Literal["docker", "native"] = "native",
    template: str = "",
    *,
    model: Model | None = None,
    platform: Platform | None = None,
    rehearsed_on: Profile | None = None,
) -> Plan:
    """Return the plan. Pure: the same inputs give the same bytes. `template` is the Dockerfile's, for docker.

    `asked` is the precision, `model` what is known of the job's, `platform` of the host's software. `rehearsed_on` is
    the CPU on which a card's precision and split are tried. Raises RefusedError when the card excludes the precision
    asked for, or a container, or the cards cannot share the global batch.
    """
    case = case_of(profile, job, model, platform)
    rungs = ladder(case, asked).rungs
    data = {name: source(value) for name, value in job.data if value is not None}
    return Plan(
        job=job.name,
        host=host.name,
        profile=profile,
        rehearsed=rehearsed_on is not None,
        runtime=runtime,
        image=image(rehearsed_on or profile, job, host.build, template) if runtime == "docker" else None,
        env=host.env,
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
        split=split(profile, job.batch, model, job.method, rungs[0], case.tokens),
        attempts=job.attempts,
        restart=job.restart,
        hang_minutes=job.hang_minutes,
        time_limit_minutes=job.time_limit_minutes,
        stop_grace_s=job.stop_grace_s,
    )


def case_of(profile: Profile, job: Job, model: Model | None, platform: Platform | None) -> Case:
    """Return what a job's ladder on a card is made for; a sample's length is its setting `max_length`."""
    length = job.settings.get("max_length")
    tokens = length if type(length) is int and length > 0 else TOKENS
    return Case(profile, job.method, model, platform or Platform(), job.attention, job.compile, tokens)


def source(written: str) -> Source:
    """Tell a path here (`./x`, `/x`, `~/x`) from one on the host (`host:/x`) and from a word for the script.

    `hub:org/name` is the word `org/name`, whatever it looks like.
    """
    if written.startswith("host:"):
        return Source(kind="host", value=written.removeprefix("host:"))
    if written.startswith(("./", "../", "/", "~")) or written in (".", ".."):
        return Source(kind="local", value=written)
    return Source(kind="name", value=written.removeprefix("hub:"))
