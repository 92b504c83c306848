"""Packages that a plan needs besides those that its job names: the optimizer of bf16 weights is torchao's."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.values.job import Job
from launcher.values.precision import Precision
from launcher.values.software.requirement import package_of

ROUNDING = "torchao==0.18.0"
"""The version whose step was measured, see tests/bench/PRECISION.md. It is pure Python where torch has no wheel of its own for it."""


def may_need_more(job: Job) -> bool:
    """Whether the ladder decides on a package more; a job that names no packages is run with what is there."""
    is_named = "torchao" in map(package_of, job.requirements)
    return job.method == "full" and bool(job.requirements) and not is_named


def with_needed(job: Job, rungs: Iterable[Precision]) -> Job:
    """Return a job with the packages that a rung of its ladder needs."""
    if not may_need_more(job) or not any(rung.rounds_stochastically for rung in rungs):
        return job
    return job.model_copy(update={"requirements": (*job.requirements, ROUNDING)})
