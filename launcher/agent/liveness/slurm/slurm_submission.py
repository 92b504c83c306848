"""The jobs that were submitted for a run: `control/slurm.json`, written before `sbatch` is asked and after it has answered.

    {"version": 1, "cluster": "testbed", "jobs": ["17"], "asked": null, "refused": ""}

The last of `jobs` is the run's own. `asked` is when a submission began whose answer is not known: its job is found again by
its comment or its folder, and a job that nobody knew of takes itself for the run's own when it begins. So a run is never
submitted twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

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
"""How long a job is looked for whose `sbatch` got no answer."""
UNSETTLED_S = 60.0
"""How long such a job may still appear in the queue: a stuck controller takes it in when it goes on."""
EARLY_S = 30
"""How much earlier than its grace a run is told that its time is nearly up: Slurm looks at its clock every half minute."""
MOST_TOLD = 0.5
"""Of a job's time, at most, is left when it is told."""
REFUSED = (1, 255)
"""The exit status of an `sbatch` that says why it submits nothing, or that it does not know; the second is for its flags."""
_UNCERTAIN = ("timed out", "Zero Bytes", "Unexpected message", "Transport endpoint", "Communication")
"""Words of an `sbatch` that failed and may have submitted its job."""
_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")
_PARSABLE = re.compile(r"([0-9]{1,10})(?:;.*)?")
_NUMBER = re.compile(r"(?<![\w.,-])[0-9]{1,10}(?![\w.,-])")
MOST_NUMBERS = 5
"""So many of the numbers that an `sbatch` prints are looked up."""


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
"""What a record must look like: a job can write one, too."""


class SubmittedJobs(NamedTuple):
    """The jobs of a run, the last one its own; when a submission began that has no answer yet; why no requeue was possible."""

    jobs: Tuple[str, ...] = ()
    asked: Optional[float] = None
    refused: str = ""

    @property
    def job(self) -> Optional[str]:
        """The run's job, None before the first, and while it is not known."""
        return self.jobs[-1] if self.jobs and self.asked is None else None

    @property
    def may_appear(self) -> bool:
        """Whether a job may be submitted that is not in the queue yet."""
        return self.asked is not None and abs(time.time() - self.asked) < UNSETTLED_S


def read(run: Run) -> SubmittedJobs:
    """Return what is on record of a run's jobs. If that cannot be ours, the run's job is the one that its comment shows."""
    try:
        record = read_record(run.slurm, _SUBMISSION)
    except UnreadableError:
        return SubmittedJobs((), 0.0)
    return SubmittedJobs(tuple(record.get("jobs") or ()), record.get("asked"), record.get("refused") or "")


def write(run: Run, submission: SubmittedJobs) -> None:
    """Put it on record, durably."""
    record = {"version": VERSION, "cluster": cluster_name(), **submission._asdict()}
    write_durably(run.slurm, strict_json.encode(record) + "\n")


def submit(run: Run) -> str:
    """Submit the job of a run, or find the one again that was submitted without an answer; return its id.

    Raises StartError: `not-submitted` with Slurm's own words, `unsettled` if nobody can say.
    """
    before = read(run)
    if before.asked is not None:
        found = _find(run, before)
        if found is not None:
            write(run, SubmittedJobs((*before.jobs, found)))
            return found
    words = ["sbatch", *flags(run)]
    intent = SubmittedJobs(before.jobs, time.time())
    write(run, intent)
    try:
        answer = ask(words, SUBMIT_S, script(run))
    except SlurmSilentError as error:
        answer = ProgramResult(1, "", "%s: timed out" % error)
    plain = _PARSABLE.fullmatch(answer.text.strip())
    job = plain[1] if plain is not None and answer.code == 0 else _settle(run, intent, answer)
    write(run, SubmittedJobs((*before.jobs, job)))
    return job


def _settle(run: Run, intent: SubmittedJobs, answer: ProgramResult) -> str:
    """Return the job of an `sbatch` that failed, or printed more than its number, if there is one. Raises StartError."""
    lines = [line.replace("sbatch: error: ", "") for line in answer.said.strip().splitlines()]
    words = "sbatch: %s" % ("; ".join(lines) or "it ended with %d" % answer.code)
    is_refused = answer.code in REFUSED and bool(lines) and not any(one in words for one in _UNCERTAIN)
    deadline = time.monotonic() + FIND_S
    while True:
        # A job that has begun has put itself on record, and may have ended since.
        found = read(run).job or _named(run, answer.text) or _find(run, intent)
        if found is not None:
            return found
        if is_refused:
            write(run, intent._replace(asked=None))
            raise StartError("not-submitted", words)
        if time.monotonic() >= deadline:
            raise StartError("unsettled", "%s; whether the job was submitted is not known" % words)
        time.sleep(1.0)


def _named(run: Run, text: str) -> Optional[str]:
    """Return the last number that an `sbatch` has printed which is a job of the run, by the controller; None if none is."""
    for number in list(dict.fromkeys(reversed(_NUMBER.findall(text))))[:MOST_NUMBERS]:
        with contextlib.suppress(SlurmSilentError):
            if slurm_lookup.shown(run, number) is not None:
                return str(number)
    return None


def _find(run: Run, submission: SubmittedJobs) -> Optional[str]:
    """Return a job of a run that is not on record, None if the queue has none. Raises StartError if nobody can say."""
    try:
        answer = ask(slurm_jobs.SUBMITTED)
    except SlurmSilentError as error:
        raise StartError("unsettled", str(error)) from None
    if answer.code != 0:
        return None
    return unknown_job(run, submission, answer.text)


def unknown_job(run: Run, submission: SubmittedJobs, text: str) -> Optional[str]:
    """Return a job of a run that is not on record, by an answer to SUBMITTED; None if there is none."""
    found = slurm_jobs.submitted_for(text, run.id, run.path)
    return next((job for job in found if job not in submission.jobs), None)


def claim(run: Run, job: str) -> bool:
    """Take a job that has begun for the run's own, if its `sbatch` has no answer; return whether it is the run's."""
    submission = read(run)
    if submission.asked is not None and job not in submission.jobs:
        submission = SubmittedJobs((*submission.jobs, job))
        write(run, submission)
    return submission.job == job


def note_end(run: Run, job: str, state: str) -> None:
    """Put on record that a job of a run ended in a state of Slurm's, which Slurm may forget.

    In a file of its own: whoever looks at a run may do it, and must not write over what a submission writes.
    """
    write_durably(run.slurm_end, strict_json.encode({"version": VERSION, "job": job, "state": state}) + "\n")


def erase_end(run: Run) -> None:
    """Take it off the record: Slurm has started the job again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        unlink(run.slurm_end)


def noted_end(run: Run) -> Optional[slurm_jobs.SlurmJob]:
    """Return the job of a run that ended by our own record, None if none is on record."""
    try:
        record = read_record(run.slurm_end, _END)
    except UnreadableError:
        return None
    noted = slurm_jobs.SlurmJob(record.get("job") or "", record.get("state") or "")
    return noted if noted.id and slurm_jobs.has_ended(noted) else None


def settings_of(run: Run) -> SlurmRecord:
    """Return what the plan of a run says of its jobs."""
    settings = run.read_plan().get("slurm")
    return settings if isinstance(settings, dict) else {}


def flags(run: Run) -> List[str]:
    """Return the flags of `sbatch` for a run: those of its plan, and those that are ours."""
    settings = settings_of(run)
    grace_s = float(run.read_plan().get("stop_grace_s", 30.0))
    time_s = (
        settings.get("time_s")
        or slurm_jobs.asked_s(variables().get("SBATCH_TIMELIMIT", ""))
        or _partition_limit_s(settings)
    )
    return [
        *(str(flag) for flag in settings.get("flags") or ()),
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
        "--signal=B:USR1@%d" % told_s(grace_s, time_s),
    ]


def told_s(grace_s: float, time_s: Optional[float]) -> int:
    """Return how many seconds before its job ends a run is asked to save; `time_s` is None for a job without a limit."""
    early_s = grace_s + EARLY_S
    return int(min(early_s, time_s * MOST_TOLD) if time_s else early_s)


def _partition_limit_s(settings: SlurmRecord) -> Optional[int]:
    """Return how long a job may run that asks for no time, None if nothing limits it or nobody says it.

    One that was told of its end earlier than that would be told as it begins, each time.
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
    """Return the job's script: it becomes the agent."""
    modules = [str(name) for name in settings_of(run).get("modules") or ()]
    loading = [
        ". /etc/profile >/dev/null 2>&1",
        *("module load %s || exit 1" % shlex.quote(name) for name in modules),
    ]
    lines = [
        "#!/bin/bash" if modules else "#!/bin/sh",
        "trap '' USR1",  # until the agent takes it: it would end the script, and the job would have failed
        *(loading if modules else ()),
        *start_of_agent("job", run),
    ]
    return "\n".join(lines) + "\n"


def start_of_agent(verb: str, run: Run) -> List[str]:
    """Return the lines of a shell by which a process in a compute node becomes the agent; its own words follow."""
    python, agent, path = map(shlex.quote, (sys.executable, os.path.abspath(sys.argv[0]), run.path))
    return [
        'python=%s; [ -x "$python" ] || python=python3' % python,
        'exec "$python" -I %s %s %s "$@"' % (agent, verb, path),
    ]


def cancel(job: str) -> str:
    """Have Slurm end a job: it gets TERM, and KILL after the cluster's KillWait. Return why Slurm does not, empty if it does."""
    return _refusal(["scancel", job])


def signal_script(job: str) -> None:
    """Send USR1 to a job's script, if Slurm takes the order."""
    _refusal(["scancel", "--batch", "--signal=USR1", job])


def end_steps(job: str, name: str) -> str:
    """Kill the steps of a job that have a name, on all nodes; return in words what may be left, empty if there was none."""
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
    """Have Slurm start this job again; return why it does not, empty if it does."""
    return _refusal(["scontrol", "requeue", job])


def _refusal(words: List[str]) -> str:
    """Give Slurm an order; return in its words why it does not take it, empty if it does."""
    try:
        answer = ask(words)
    except SlurmSilentError as error:
        return str(error)
    said = "; ".join((answer.said.strip() or answer.text.strip()).splitlines())
    return "" if answer.code == 0 else said or "%s ended with %d" % (words[0], answer.code)
