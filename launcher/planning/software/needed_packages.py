"""Packages that a plan needs besides the job's own: the optimizer of bf16 weights is torchao's."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.values.job import Job
from launcher.values.precision import Precision
from launcher.values.software.requirement import package_of

ROUNDING = "torchao==0.18.0"
"""The measured version, see tests/bench/PRECISION.md. For a torch without its own wheel, torchao is pure Python."""


def may_need_more(job: Job) -> bool:
    """Whether the ladder may add a package; a job without requirements runs with the installed packages."""
    is_named = "torchao" in map(package_of, job.requirements)
    return job.method == "full" and bool(job.requirements) and not is_named


def with_needed(job: Job, rungs: Iterable[Precision]) -> Job:
    """Return a job with the packages that a rung of its ladder needs."""
    if not may_need_more(job) or not any(rung.rounds_stochastically for rung in rungs):
        return job
    return job.model_copy(update={"requirements": (*job.requirements, ROUNDING)})
