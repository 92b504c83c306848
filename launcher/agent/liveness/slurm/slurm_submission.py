"""The jobs submitted for a run: `control/slurm.json`, written before `sbatch` starts and after it answers.

    {"version": 1, "cluster": "testbed", "jobs": ["17"], "asked": null, "refused": ""}

The last of `jobs` is the run's current job. `asked` is the start time of a submission whose answer is
unknown. Such a job is found again by its comment or its folder, and a job that was not found claims the run
when it begins. So a run is never submitted twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

from ...record import strict_json
from ...record.files import write_durably
from ...record.record_shape import Shape, read_record
from ...record.rundir import VERSION, Run
from ...record.safe_open import UnreadableError, unlink
from ..liveness import StartError
from . import slurm_jobs, slurm_lookup
from .slurm_programs import ProgramResult, SlurmSilentError, ask, cluster_name, variables

if TYPE_CHECKING:
    from ...record.run_records import SlurmRecord

SUBMIT_S = 30.0
LIMIT_S = 3.0
LOOK_S = 10.0
FIND_S = 10.0
"""How long to look for a job whose `sbatch` gave no answer."""
UNSETTLED_S = 60.0
"""How long such a job may still appear in the queue: a stuck controller accepts it when it recovers."""
EARLY_S = 30
"""Added to the grace when a run is warned of its end: Slurm checks its clock only every half minute."""
MAX_TOLD = 0.5
"""The largest part of a job's time that may be left when it is warned."""
_DEPENDENCY = "--dependency="
_ABBREVIATED = "--dep"
"""The shortest form of that flag that `sbatch` takes for no other one."""
REFUSED = (1, 255)
"""The exit statuses of an `sbatch` that refused, or does not know the outcome; 255 is for wrong flags."""
LIMIT_REACHED = "limit-reached"
"""The code of a submission that Slurm refuses at present: it takes no more jobs of this user, or of anybody."""
_PASSES = re.compile(r"\b(?:QOS|Assoc)\w*Submit\w*Limit\b|temporarily unable to accept job")
"""The words of sbatch 22.05 for a limit that passes as jobs end. For a job that is too large it has other ones."""
_UNCERTAIN = ("timed out", "Zero Bytes", "Unexpected message", "Transport endpoint", "Communication")
"""Error words of an `sbatch` that may have submitted its job although it failed."""
_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")
_PARSABLE = re.compile(r"([0-9]{1,10})(?:;.*)?")
_NUMBER = re.compile(r"(?<![\w.,-])[0-9]{1,10}(?![\w.,-])")
MAX_NUMBERS = 5
"""The most numbers in the output of an `sbatch` that are looked up."""


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SUBMISSION: Shape = {
    "jobs": lambda value: isinstance(value, list) and all(map(_is_id, value)),
    "asked": lambda value: type(value) in (int, float) and abs(value) <= 1e12,
    "refused": _is_text,
}
_END: Shape = {"job": _is_id, "state": _is_text}
"""The required shapes of the two records. They are checked, because a job can write these files too."""


class SubmittedJobs(NamedTuple):
    """The jobs of a run, and its unanswered submission.

    The last of `jobs` is the current one. `asked` is the time of a submission without an answer yet.
    `refused` is why a requeue failed.
    """

    jobs: Tuple[str, ...] = ()
    asked: Optional[float] = None
    refused: str = ""

    @property
    def job(self) -> Optional[str]:
        """The run's job; None before the first submission and while it is unknown."""
        return self.jobs[-1] if self.jobs and self.asked is None else None

    @property
    def may_appear(self) -> bool:
        """Whether a submitted job may still appear in the queue."""
        return self.asked is not None and abs(time.time() - self.asked) < UNSETTLED_S


def read(run: Run) -> SubmittedJobs:
    """Return the recorded jobs of a run. If the record is not ours, the run's job is found by its comment."""
    try:
        record = read_record(run.slurm, _SUBMISSION)
    except UnreadableError:
        return SubmittedJobs((), 0.0)
    return SubmittedJobs(tuple(record.get("jobs") or ()), record.get("asked"), record.get("refused") or "")


def write(run: Run, submission: SubmittedJobs) -> None:
    """Write the record durably."""
    record = {"version": VERSION, "cluster": cluster_name(), **submission._asdict()}
    write_durably(run.slurm, strict_json.encode(record) + "\n")


def submit(run: Run, after: Sequence[str] = ()) -> str:
    """Submit the job of a run, or find the job of a submission without an answer; return its id.

    `after` are the jobs that it waits for, each with its condition, such as `afterok:7`.
    Raises StartError with Slurm's own words: `not-submitted`, `limit-reached` for a limit that passes, or
    `unsettled` if the outcome is unknown.
    """
    before = read(run)
    if before.asked is not None:
        found = _find(run, before)
        if found is not None:
            write(run, SubmittedJobs((*before.jobs, found)))
            return found
    words = ["sbatch", *with_dependencies(flags(run), after)]
    intent = SubmittedJobs(before.jobs, time.time())
    write(run, intent)
    try:
        answer = ask(words, SUBMIT_S, script(run))
    except SlurmSilentError as error:
        answer = ProgramResult(1, "", "%s\n%s: timed out" % (error.said.strip(), error))
    plain = _PARSABLE.fullmatch(answer.text.strip())
    job = plain[1] if plain is not None and answer.code == 0 else _settle(run, intent, answer)
    write(run, SubmittedJobs((*before.jobs, job)))
    return job


def _settle(run: Run, intent: SubmittedJobs, answer: ProgramResult) -> str:
    """Return the job of an `sbatch` that failed or printed more than a number, if one exists.

    Raises StartError.
    """
    lines = [line.replace("sbatch: error: ", "") for line in answer.said.strip().splitlines()]
    words = "sbatch: %s" % ("; ".join(lines) or "it ended with %d" % answer.code)
    is_refused = answer.code in REFUSED and bool(lines) and not any(one in words for one in _UNCERTAIN)
    deadline = time.monotonic() + FIND_S
    while True:
        # A job that has begun has recorded itself, and may have ended since.
        found = read(run).job or _named(run, answer.text) or _find(run, intent)
        if found is not None:
            return found
        is_over = time.monotonic() >= deadline
        passes = _PASSES.search(words) is not None
        if is_refused or (is_over and passes):
            write(run, intent._replace(asked=None))
            raise StartError(LIMIT_REACHED if passes else "not-submitted", words)
        if is_over:
            raise StartError("unsettled", "%s; whether the job was submitted is not known" % words)
        time.sleep(1.0)


def _named(run: Run, text: str) -> Optional[str]:
    """Return the last number printed by `sbatch` that the controller knows as a job of the run, or None."""
    for number in list(dict.fromkeys(reversed(_NUMBER.findall(text))))[:MAX_NUMBERS]:
        with contextlib.suppress(SlurmSilentError):
            if slurm_lookup.shown(run, number) is not None:
                return str(number)
    return None


def _find(run: Run, submission: SubmittedJobs) -> Optional[str]:
    """Return an unrecorded job of a run; None if the queue has none.

    Raises StartError if Slurm does not answer.
    """
    try:
        answer = ask(slurm_jobs.SUBMITTED)
    except SlurmSilentError as error:
        raise StartError("unsettled", str(error)) from None
    if answer.code != 0:
        return None
    return unknown_job(run, submission, answer.text)


def unknown_job(run: Run, submission: SubmittedJobs, text: str) -> Optional[str]:
    """Return an unrecorded job of a run from an answer to SUBMITTED; None if the answer has none."""
    found = slurm_jobs.submitted_for(text, run.id, run.path)
    return next((job for job in found if job not in submission.jobs), None)


def claim(run: Run, job: str) -> bool:
    """Record a begun job as the run's own if its `sbatch` has no answer; return whether it is the run's."""
    submission = read(run)
    if submission.asked is not None and job not in submission.jobs:
        submission = SubmittedJobs((*submission.jobs, job))
        write(run, submission)
    return submission.job == job


def note_end(run: Run, job: str, state: str) -> None:
    """Record the state in which a job of a run ended, because Slurm may forget it.

    The record has its own file: any process that looks at a run may write it, and must not overwrite a submission.
    """
    write_durably(run.slurm_end, strict_json.encode({"version": VERSION, "job": job, "state": state}) + "\n")


def erase_end(run: Run) -> None:
    """Remove the recorded end: Slurm has started the job again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        unlink(run.slurm_end)


def noted_end(run: Run) -> Optional[slurm_jobs.SlurmJob]:
    """Return the ended job of a run from our own record; None if no end is recorded."""
    try:
        record = read_record(run.slurm_end, _END)
    except UnreadableError:
        return None
    noted = slurm_jobs.SlurmJob(record.get("job") or "", record.get("state") or "")
    return noted if noted.id and slurm_jobs.has_ended(noted) else None


def settings_of(run: Run) -> SlurmRecord:
    """Return the Slurm settings in the plan of a run."""
    settings = run.read_plan().get("slurm")
    return settings if isinstance(settings, dict) else {}


def flags(run: Run) -> List[str]:
    """Return the flags of `sbatch` for a run: those of its plan, and ours."""
    settings = settings_of(run)
    grace_s = float(run.read_plan().get("stop_grace_s", 30.0))
    time_s = (
        settings.get("time_s")
        or slurm_jobs.asked_s(variables().get("SBATCH_TIMELIMIT", ""))
        or _partition_limit_s(settings)
    )
    return flags_of(run, [str(flag) for flag in settings.get("flags") or ()], told_s(grace_s, time_s))


def flags_of(run: Run, asked: Sequence[str], early_s: int) -> List[str]:
    """Return the flags of `sbatch` for a run: the `asked` ones, and ours. It is warned `early_s` before its end."""
    return [
        *asked,
        "--parsable",
        "--job-name=%s" % slurm_jobs.name_of(run.id),
        "--comment=%s%s" % (slurm_jobs.COMMENT, run.id),
        "--output=%s" % run.slurm_log.replace("%", "%%"),
        "--chdir=%s" % run.path,
        "--open-mode=append",
        "--requeue",
        "--export=NIL",
        "--propagate=NONE",  # the limits of a login node are not meant for jobs
        "--ntasks-per-node=1",
        "--signal=B:USR1@%d" % early_s,
    ]


def with_dependencies(flags_given: Sequence[str], jobs: Sequence[str]) -> List[str]:
    """Return flags of `sbatch` with these dependencies, such as `afterok:7`, and those that the user has given.

    `sbatch` takes the last of several flags. Raises StartError for an `or` (`?`) of the user's, which cannot be joined.
    """
    if not jobs:
        return [*flags_given]
    others = [flag for flag in flags_given if not flag.startswith(_ABBREVIATED)]
    own = [flag.partition("=")[2] for flag in flags_given if flag.startswith(_ABBREVIATED)][-1:]
    if own and "?" in own[0]:
        raise StartError(
            "not-submitted", "%s%s: its `?` cannot be joined with other runs" % (_DEPENDENCY, own[0])
        )
    return [*others, _DEPENDENCY + ",".join([*own, *jobs]), "--kill-on-invalid-dep=yes"]


def told_s(grace_s: float, time_s: Optional[float]) -> int:
    """Return how many seconds before its job's end a run is asked to save.

    `time_s` is None for a job without a time limit.
    """
    early_s = grace_s + EARLY_S
    return int(min(early_s, time_s * MAX_TOLD) if time_s else early_s)


def _partition_limit_s(settings: SlurmRecord) -> Optional[int]:
    """Return the time limit in seconds of a job that requests none; None if it has none or it is unknown.

    If the warning came longer before the end than this limit, each job would be warned as it begins.
    """
    named = (flag for flag in settings.get("flags") or () if flag.startswith("--partition="))
    partition = next(named, "").partition("=")[2] or variables().get("SBATCH_PARTITION", "")
    names = [name for name in partition.split(",") if name]
    try:
        text = ask(slurm_jobs.PARTITIONS, LIMIT_S).text
    except SlurmSilentError:
        return None
    return slurm_jobs.limit_s(text, names)


def script(run: Run) -> str:
    """Return the job's script, which becomes the agent."""
    modules = [str(name) for name in settings_of(run).get("modules") or ()]
    return script_of(modules, start_of_agent("job", run))


def script_of(modules: Sequence[str], start: Sequence[str]) -> str:
    """Return the script of a job that loads some modules before the lines that start its agent."""
    loading = [
        ". /etc/profile >/dev/null 2>&1",
        *("module load %s || exit 1" % shlex.quote(name) for name in modules),
    ]
    lines = [
        "#!/bin/bash" if modules else "#!/bin/sh",
        "trap '' USR1",  # until the agent handles USR1: before that, USR1 would end the script, and the job would fail
        *(loading if modules else ()),
        *start,
    ]
    return "\n".join(lines) + "\n"


def start_of_agent(verb: str, run: Run) -> List[str]:
    """Return the shell lines that turn a compute node's process into the agent; its arguments follow."""
    return lines_of_agent(verb, run, sys.executable, os.path.abspath(sys.argv[0]))


def lines_of_agent(verb: str, run: Run, interpreter: str, archive: str) -> List[str]:
    """Return these lines for an interpreter and the file of the agent."""
    python, agent, path = map(shlex.quote, (interpreter, archive, run.path))
    return [
        'python=%s; [ -x "$python" ] || python=python3' % python,
        'exec "$python" -I %s %s %s "$@"' % (agent, verb, path),
    ]


def cancel(job: str) -> str:
    """Make Slurm end a job: it gets TERM, and KILL after the cluster's KillWait.

    Return why Slurm refuses, empty if it does not.
    """
    return _refusal(["scancel", job])


def signal_script(job: str) -> None:
    """Send USR1 to a job's script, if Slurm accepts the order."""
    _refusal(["scancel", "--batch", "--signal=USR1", job])


def end_steps(job: str, name: str) -> str:
    """Kill the steps of a job that have a name, on all nodes.

    Return in words what may be left; empty if no such step was found.
    """
    try:
        answer = ask([*slurm_jobs.STEPS, job], LOOK_S)
        if answer.code != 0:
            return "squeue: %s" % (answer.said.strip() or "it ended with %d" % answer.code)
        steps = slurm_jobs.parse_steps(answer.text, name)
        if steps:
            ask(["scancel", "--signal=KILL", *steps], LOOK_S)
    except SlurmSilentError as error:
        return str(error)
    return "step %s has not ended" % ", ".join(steps) if steps else ""


def requeue(job: str) -> str:
    """Make Slurm start this job again; return why it refuses, empty if it does not."""
    return _refusal(["scontrol", "requeue", job])


def _refusal(words: List[str]) -> str:
    """Give Slurm an order; return its reason for a refusal, empty if it accepts."""
    try:
        answer = ask(words)
    except SlurmSilentError as error:
        return str(error)
    said = "; ".join((answer.said.strip() or answer.text.strip()).splitlines())
    return "" if answer.code == 0 else said or "%s ended with %d" % (words[0], answer.code)
