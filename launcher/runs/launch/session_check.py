"""What a job's user must know of its host's sessions, by the job's script, and what is refused before values are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends.slurm.slurm_job import settings_of as slurm_settings_of
from launcher.config.resolve import Task
from launcher.config.script_reading import seems_to_resume
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding

SLURM_EARLY_S = 60
"""So much earlier than it was asked to Slurm may send a signal: the page of `sbatch` on --signal."""
WORTH_S = 60
_MEND = "have it save and resume through launcher_worker     or let it begin anew   --set restart=true"


def findings(task: Task, host: Host) -> Iterator[Finding]:
    """Yield a note if a job that may be longer than a session, or one start of a job of Slurm's, cannot go on in the next one."""
    yield from _of_slurm(task, host)
    settings, job = host.kaggle, task.job
    if settings is None or job.restart:
        return
    limit = job.time_limit_minutes
    is_short = limit is not None and limit <= settings.session_hours * 60
    if is_short or seems_to_resume(job, task.code) is not False:
        return
    message = (
        f"{host.name}: the script never asks worker.resume_from(): a run that is longer than a session cannot go on in the "
        "next one, and ends as not-restartable"
    )
    yield Finding(level="note", code="cannot-go-on", message=message, mend=_MEND)


def _of_slurm(task: Task, host: Host) -> Iterator[Finding]:
    settings, job = slurm_settings_of(host, task.job), task.job
    if settings is None or settings.time_s is None:
        return
    limit = job.time_limit_minutes
    is_short = limit is not None and limit * 60 <= settings.time_s
    if is_short:
        return
    if job.restart or seems_to_resume(job, task.code) is not False:
        yield from _of_short_time(host, job, settings.time, settings.time_s)
        return
    message = (
        f'{host.name}: the script never asks worker.resume_from(): a run that is longer than its time = "{settings.time}" '
        "cannot go on in the next start of its job, and ends as not-restartable"
    )
    yield Finding(level="note", code="cannot-go-on", message=message, mend=_MEND)


def _of_short_time(host: Host, job: Job, time: str | None, time_s: int) -> Iterator[Finding]:
    """Yield a note if a start of a job may train for less than a minute, or may have less time to save than its grace."""
    from launcher.backends.slurm.slurm_times import MOST_TOLD, told_s  # few jobs are for a cluster

    left_s = told_s(job.stop_grace_s, time_s)
    is_cut = left_s >= time_s * MOST_TOLD
    if not is_cut and time_s - left_s - SLURM_EARLY_S > WORTH_S:
        return
    message = (
        f'{host.name}: time = "{time}" is short: each start is told to save {left_s} s before its end, '
        f"and Slurm may say so up to {SLURM_EARLY_S} s sooner"
    )
    mend = "a longer time   --set slurm.time=30     or less to save in   --set stop_grace_s=10"
    yield Finding(level="note", code="short-time", message=message, mend=mend)


def refusals(task: Task, host: Host) -> tuple[Finding, ...]:
    """Return the refusal of secrets where a host cannot be given any."""
    if host.kaggle is None:
        return ()
    from launcher.backends.kaggle.kaggle_gate import no_secrets

    return no_secrets(host.name, task.job.secrets)
