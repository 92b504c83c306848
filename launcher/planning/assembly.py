"""Assemble the plan from profile, host, job and facts."""

from __future__ import annotations

from collections.abc import Collection

from launcher.planning.allocation import allocation, nodes, processes
from launcher.planning.host_resources import MACHINE, Resources
from launcher.planning.precision.ladder import LadderInputs, has_fitting, ladder
from launcher.planning.precision.precision_history import concerning, failed_before, measured_in
from launcher.planning.precision.split import split
from launcher.planning.precision.workload import read_workload, set_checkpointing, workload_of
from launcher.planning.script.source import source, written
from launcher.planning.software.image_plan import Sources, image
from launcher.planning.software.wheel_choice import UNKNOWN, HostSoftware
from launcher.planning.verification_plan import workload_digest
from launcher.values.facts import PrecisionEvidence
from launcher.values.host import Host
from launcher.values.job import OF_ONE_KIND, BatchSize, Job, trains_adapter
from launcher.values.model import Model
from launcher.values.plan import UNREAD, Commit, Plan, ScriptUse, Source
from launcher.values.precision import Platform, PrecisionRequest
from launcher.values.profile import Profile
from launcher.values.software.environment import Environment


def plan(
    profile: Profile,
    host: Host,
    job: Job,
    asked: PrecisionRequest = "auto",
    runtime: str = "native",
    sources: Sources | None = None,
    *,
    site: HostSoftware = UNKNOWN,
    environment: Environment | None = None,
    model: Model | None = None,
    teacher: Model | None = None,
    platform: Platform | None = None,
    evidence: tuple[PrecisionEvidence, ...] = (),
    rehearsed_on: Profile | None = None,
    script: ScriptUse = UNREAD,
    packages_from: str | None = None,
    resources: Resources = MACHINE,
    commit: Commit | None = None,
) -> Plan:
    """Return the plan. Pure: the same inputs give the same bytes.

    `asked` is the requested precision. `sources` are for an image. `site` has the host's driver and processor
    architecture; `platform` has the versions and processor features on which a precision depends.
    `environment` is created on the host for a native run. `evidence` records how precisions did there in
    earlier runs with the job's model. `teacher` is the teacher model of a distillation. `rehearsed_on` is the
    CPU on which a rehearsal tries a card's precision and split. `script` holds the facts about the job's
    script. `packages_from` is the source of requirements that the job itself does not name. `resources` are
    the run's resources there. `commit` is the git commit of the code.

    Raises RefusedError if the card excludes the requested precision or a container, and UnequalSharesError if
    the cards cannot share the global batch equally.
    """
    on = rehearsed_on or profile
    built = image(on, job, host.build, sources, site) if runtime == "docker" else None
    packages = built or environment
    torch = packages.torch if packages else platform.torch if platform else None
    count = resources.nodes
    about = (model, platform, evidence, torch, teacher)
    inputs = ladder_inputs(profile, job, *about, asked=asked, script=script, count=count)
    ranks = processes(profile, script.ranks, count)
    rungs = ladder(inputs, asked).rungs
    measured = inputs.measured.get(rungs[0].digest)
    batch = split(profile, job.batch, model, job.method, rungs[0], inputs.workload, measured, ranks)
    return Plan(
        job=job.name,
        host=host.name,
        profile=profile,
        rehearsed=rehearsed_on is not None,
        runtime=runtime,
        image=built,
        environment=environment,
        host_environment=host.environment,
        command=job.command,
        takes=script.takes,
        rank_use=script.ranks,
        requirements=job.requirements,
        packages_from=packages_from,
        model=_source_or_none(job.model),
        model_facts=model,
        teacher=_source_or_none(job.teacher),
        teacher_facts=teacher,
        data=_data(job),
        method=job.method,
        steps=job.steps,
        seed=job.seed,
        save_every_steps=job.save_every_steps,
        save_every_minutes=job.save_every_minutes,
        keep_checkpoints=job.keep_checkpoints,
        checkpoints=job.checkpoints,
        loader_workers=job.loader_workers,
        settings=job.settings,
        writable=job.writable,
        variables=job.variables,
        secrets=tuple(sorted(set(job.secrets))),
        ladder=rungs,
        split=batch,
        checkpointing=inputs.workload.is_checkpointed,
        sharding=inputs.workload.is_sharded,
        nodes=nodes(batch, count),
        allocation=allocation(profile, is_rehearsed=rehearsed_on is not None, resources=resources),
        slurm=resources.submission,
        attempts=job.attempts,
        restart=job.restart,
        hang_minutes=job.hang_minutes,
        time_limit_minutes=job.time_limit_minutes,
        stop_grace_s=job.stop_grace_s,
        outputs=job.outputs,
        pull_limit=job.pull_limit,
        inject=job.inject,
        adapt=job.adapt,
        guard=job.guard,
        on_end=job.on_end,
        commit=commit,
    )


def job_of(plan: Plan) -> Job:
    """Return a job that would give this plan, with paths as the user wrote them. Values that a plan does not hold are missing."""
    special = {"image", "model", "teacher", "data", *OF_ONE_KIND}
    common = {key: getattr(plan, key) for key in Job.model_fields if key in {*Plan.model_fields} - special}
    return Job.model_validate(
        {
            **common,
            "name": plan.job,
            "model": written(plan.model) if plan.model is not None else None,
            "teacher": written(plan.teacher) if plan.teacher is not None else None,
            "checkpointing": plan.checkpointing or "auto",
            "batch": BatchSize(global_size=plan.split.global_batch, micro=plan.split.micro_batch),
            "data": {name: written(value) for name, value in plan.data.items()},
        }
    )


def changed(parent: Plan, job: Job, keys: Collection[str], host: str) -> Plan:
    """Return the plan of a run that resumes another one: the parent's plan with some keys of the job changed.

    `job` is the parent's job with the changes. `keys` are the changed keys, as in a job's file. Keys that a
    plan does not have are ignored, and so is a backend's own table, such as `slurm`. `host` is the host's
    name on the client. Another micro-batch, or settings that need another amount of memory, change the split,
    never the global batch.
    """
    names = {key.split(".")[0] for key in keys} & {*Plan.model_fields} - OF_ONE_KIND.keys()
    values = {key: getattr(job, key) for key in names}
    if "checkpointing" in values:
        values["checkpointing"] = parent.checkpointing if job.checkpointing == "auto" else job.checkpointing
    is_again = values.get("checkpointing", parent.checkpointing)
    workload = workload_of(parent.model_copy(update={"checkpointing": is_again}), job.settings)
    if "batch.micro" in keys or workload != workload_of(parent):
        batch = BatchSize(global_size=parent.split.global_batch, micro=job.batch.micro)
        model, rung, ranks = parent.model_facts, parent.ladder[0], parent.split.ranks
        values["split"] = split(parent.profile, batch, model, parent.method, rung, workload, ranks=ranks)
    return Plan.model_validate({**parent.model_dump(), **values, "job": job.name, "host": host})


def ladder_inputs(
    profile: Profile,
    job: Job,
    model: Model | None,
    platform: Platform | None,
    evidence: tuple[PrecisionEvidence, ...] = (),
    torch: str | None = None,
    teacher: Model | None = None,
    *,
    asked: PrecisionRequest = "auto",
    script: ScriptUse = UNREAD,
    count: int = 1,
) -> LadderInputs:
    """Return the ladder's inputs for a job on a card, with activation checkpointing if no precision fits without it.

    If no precision fits even then, a full fine-tune is divided among the cards, if the job's script can do that.
    If that does not fit either, the inputs allow bf16 weights: without checkpointing, or with it if needed.

    `torch` is the version that the run gets, `None` if unknown. `teacher` is the teacher model of a
    distillation, `asked` the requested precision, `count` the number of nodes. For a script that does not
    take checkpointing from the plan, its settings decide.
    """
    about = (profile, job, _source_or_none(job.model), torch)
    ranks = processes(profile, script.ranks, count)

    def inputs(is_checkpointed: bool, is_sharded: bool) -> LadderInputs:
        has_teacher = job.teacher is not None
        workload = read_workload(
            job.settings,
            teacher,
            model,
            has_teacher=has_teacher,
            is_checkpointed=is_checkpointed,
            ranks=ranks,
            is_sharded=is_sharded,
        )
        digest = workload_digest(job, ranks, model, workload, _data(job))
        return LadderInputs(
            profile,
            job.method,
            model,
            platform or Platform(),
            job.attention,
            job.compile,
            workload,
            failed_before(evidence, *about),
            measured_in(concerning(evidence, *about), digest),
        )

    wanted = set_checkpointing(job.settings)
    if script.takes is not None and "checkpointing" not in script.takes:
        wanted = wanted is True
    elif job.checkpointing != "auto":
        wanted = job.checkpointing
    can_shard = job.sharding and ranks > 1 and not trains_adapter(job.method)
    ways = ((False, False), *([(True, False)] if can_shard else []), (False, True))
    cases = [
        inputs(is_checkpointed, is_sharded)._replace(takes_bf16_weights=takes_bf16_weights)
        for is_sharded, takes_bf16_weights in ways
        for is_checkpointed in ((False, True) if wanted is None else (wanted,))
    ]
    return next((case for case in cases if has_fitting(case, asked)), cases[-1])


def _data(job: Job) -> dict[str, Source]:
    return {name: source(value) for name, value in job.data if value is not None}


def _source_or_none(written: str | None) -> Source | None:
    return source(written) if written is not None else None
