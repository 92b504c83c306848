"""The plan of `launch verify`: a job's own plan, whose attempts try the ladder's rungs for a few steps each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from launcher.errors import BadFileError
from launcher.planning.precision.workload import Workload, workload_of
from launcher.values.base import canonical_json
from launcher.values.job import Job
from launcher.values.model import Model
from launcher.values.plan import Plan, Source, Verification

STEPS, HELD = 12, 6
"""The number of steps of a trial, and the number of its first steps with held weights.

A scaler that starts at 65536 usually skips a few of the held steps. One more step warms up; the rest are timed.
"""
REHEARSED_STEPS, REHEARSED_HELD = 6, 4
"""The same numbers on a CPU that acts as the card: lower, because it computes fp16 slowly and its speed means nothing."""
MAX_TRIALS = 100


def verification(plan: Plan, job: Job) -> Plan:
    """Return the plan that verifies another one. It saves no checkpoints and sends no notice of its end.

    The start-up hook observes the trials, so they show the dtypes that were really used. Raises BadFileError
    if the job's table `verify` would make the measured workload differ from a launch's.
    """
    workload = workload_of(plan)
    for name, value in job.verify.items():
        if workload_of(plan, {**plan.settings, name: value}) != workload:
            raise BadFileError(
                f"job '{plan.job}': [verify] {name} = {value}: a launch would need a different amount of memory and time\n"
                f"  remove it from the request, or change the job   --set settings.{name}={value}"
            )
    digest = workload_digest(job, plan.split.ranks, plan.model_facts, workload, plan.data)
    steps, held = (REHEARSED_STEPS, REHEARSED_HELD) if plan.rehearsed else (STEPS, HELD)
    return Plan.model_validate(
        {
            **plan.model_dump(),
            "settings": {**plan.settings, **job.verify},
            "save_every_steps": None,
            "save_every_minutes": None,
            "attempts": MAX_TRIALS,
            "restart": True,
            "on_end": (),
            "inject": True,
            "guard": "end",
            "verification": Verification(steps=steps, held=held, workload=digest),
        }
    )


def workload_digest(
    job: Job, ranks: int, model: Model | None, workload: Workload, data: Mapping[str, Source]
) -> str:
    """Return the digest of everything that affects speed and memory, except card, software and precision."""
    teacher = workload.teacher
    values = {
        "workload": {
            name: teacher and teacher.model_dump(mode="json") if name == "teacher" else value
            for name, value in workload._asdict().items()
            if name != "ranks" and (name != "is_sharded" or value)
        },
        "model": model and model.model_dump(mode="json"),
        "teacher": job.teacher,
        "command": job.command,
        "data": {name: source.model_dump(mode="json") for name, source in data.items()},
        "ranks": ranks,
        "method": job.method,
        "attention": job.attention,
        "compile": job.compile,
    }
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()
