"""Runs that are jobs of a Slurm cluster: its scheduler starts and restarts them, and reports their state.

A run belongs to the cluster, not to a machine: any login node may judge it. Its agent is on a compute node,
whose processes and locks are not seen from here. The sources of a verdict, in order: the scheduler's queue,
its record of the one job, accounting, our own record.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...record import secret
from ...record.rundir import LIVE, RUN_ID, TERMINAL, Run
from ...record.safe_open import read_tail
from ...record.strict_json import JsonObject
from ...system.client_program import CommandError
from ..liveness import GONE, SILENT, EndError, LivenessProbe, Orphan, RunLiveness, StartError
from . import slurm_jobs, slurm_submission
from .queue_position import QueuePosition
from .slurm_jobs import SlurmJob
from .slurm_lookup import JobLookup
from .slurm_programs import FREED, CachedQuery, SlurmSilentError, ask, cluster_name, path_of
from .slurm_submission import SubmittedJobs

MAX_LOG, MAX_LINE = 2000, 200
"""The bytes of the end of a job's log, and of its last line, that are evidence."""
PLACE = "slurm:"
"""The prefix of a cluster's place id; the cluster's name follows."""
KEPT_S, WAIT_S, SILENCE_S = 2.0, 1.5, 30.0
"""A listing of runs waits 3 s for a host, so WAIT_S leaves it time to connect if no controller answers."""
AGAIN_S = 5.0
"""Seconds until accounting is asked again about a job that it does not show as ended."""
MAX_S = 8.0
"""The longest wait for an answer that a stop, or a command beside a run, needs."""
LEAVING_S = 60.0
"""Seconds after the end of a run before its running job, which still has its nodes, counts as left over."""
BESIDE = (
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--relative=0",
    "--cpu-bind=none",
    "--export=NONE",
    "--unbuffered",
    "--quiet",
)
"""Starts one process on the first node of a job, beside the job's other processes and with its cards."""


class SlurmLiveness(LivenessProbe):
    """The answers of one cluster, cached for a moment: many runs cost one query."""

    is_started_by_client = False
    shows_processes = False
    sees_host = False
    sees_lock = False
    writes_afar = True
    shutdown_reason = "ended-by-slurm"

    def __init__(self) -> None:
        """Start without answers."""
        self._queue = CachedQuery(slurm_jobs.QUEUE, KEPT_S, WAIT_S, SILENCE_S)
        self._submitted = CachedQuery(slurm_jobs.SUBMITTED, KEPT_S, WAIT_S, SILENCE_S)
        self._turn = QueuePosition()
        self._lookup = JobLookup()
        self._missing: Set[str] = set()
        self._history: Dict[str, _AccountingAnswer] = {}
        self._accounts_silent_until_s = 0.0
        self._looked_at: Dict[str, int] = {}

    def place_id(self) -> str:
        """Return the id of the cluster that this machine belongs to."""
        name = cluster_name()
        return PLACE + name if name else ""

    def job_id(self, run: Run) -> Optional[str]:
        """Return the id of the run's job from our own record, without a query to Slurm."""
        return slurm_submission.read(run).job

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Ask the queue once for all runs, then the controller for each missing job, then accounting."""
        submissions = {run.id: slurm_submission.read(run) for run in runs}
        try:
            queue = _by_id(self._queue.answer())
            jobs = {run.id: self._job_of(run, submissions[run.id]) for run in runs}
            if any(self._is_older(run, jobs[run.id], queue) for run in runs):
                queue = _by_id(self._queue.answer_now())
            queued = {run.id: _own(run, queue.get(jobs[run.id] or "")) for run in runs}
        except SlurmSilentError as error:
            return {run.id: self._without_slurm(run, submissions[run.id], str(error)) for run in runs}
        missing = [run for run in runs if jobs[run.id] is not None and queued[run.id] is None]
        self._missing.update(str(jobs[run.id]) for run in missing)
        unsaid: Dict[str, str] = {}
        for run in missing:
            try:
                queued[run.id] = self._look_beyond(run, str(jobs[run.id]))
            except SlurmSilentError as error:
                unsaid[run.id] = str(error)
        unknown = [run.id for run in missing if queued[run.id] is None and run.id not in unsaid]
        self._look_up({run: str(jobs[run]) for run in unknown})
        before = self._turn.before([job for job in queued.values() if job is not None])
        verdicts = {
            run.id: _silent(run, unsaid[run.id])
            if run.id in unsaid
            else _if_it_can_continue(
                run, self._verdict(run, submissions[run.id], jobs[run.id], queued[run.id], before)
            )
            for run in runs
        }
        for run in runs:
            if verdicts[run.id].state in TERMINAL:
                with contextlib.suppress(OSError):  # the next judgement tries again
                    secret.erase(run)  # no agent and no contact will record this end
        return verdicts

    def forget(self, run: Run) -> None:
        """Ask the queue again the next time, unless its answer is late: asking again would only wait longer."""
        if not self._queue.is_late():
            self._queue.forget()
        self._submitted.forget()
        self._lookup.forget()
        self._history.clear()
        self._missing.clear()

    def is_removed(self, run: Run) -> bool:
        """Whether no job was ever submitted for the run.

        A job that has ended may have left files or processes.
        """
        submission = slurm_submission.read(run)
        return not submission.jobs and submission.asked is None

    def hopeless(self, run: Run) -> Optional[Tuple[str, str, JsonObject]]:
        """Refuse to restart a run whose verdict is an end, such as one whose job was cancelled in Slurm."""
        verdict = self.judge([run])[run.id]
        if verdict.liveness != GONE or verdict.state not in TERMINAL:
            return super().hopeless(run)
        return verdict.state, str(verdict.reason), verdict.evidence or {}

    def start(self, run: Run, after: int) -> None:
        """Submit the run's job. It may wait for long before it begins."""
        slurm_submission.submit(run, () if _has_begun(run) else self._jobs_before(run))
        folder = run.folder(after)
        if folder.read_state().get("state") == "preparing":
            folder.write_state("reserved")  # for readers that have only a copy of the record
        self._queue.forget()

    def _jobs_before(self, run: Run) -> List[str]:
        """Return the jobs that must end before the first start of a run, each with its condition, such as `afterok:7`.

        Its plan names their runs, as `RUN:ok` or `RUN:any`. A run that has ended as asked needs none. Raises
        StartError for a run that is not below this root, that can no longer end as asked, or that goes on only
        if its user recovers it: Slurm would take its job for ended.
        """
        found = []
        for written in slurm_submission.settings_of(run).get("after") or ():
            name, _, condition = str(written).partition(":")
            other = Run(os.path.join(run.root, "runs", name))
            is_there = RUN_ID.fullmatch(name) is not None and os.path.isdir(other.record)
            last = other.last() if is_there else None
            if last is None:
                raise StartError("not-submitted", "%s is not below %s on this cluster" % (name, run.root))
            state = str(last.read_state().get("state"))
            if state not in TERMINAL:
                verdict = self.judge([other])[name]
                if verdict.liveness == GONE:
                    state = verdict.state or "interrupted"
            if state == "succeeded" or (condition == "any" and state in TERMINAL):
                continue
            if state in TERMINAL:
                raise StartError(
                    "not-submitted", "%s is %s: a run after it would never start" % (name, state)
                )
            if state in ("waiting", "interrupted"):
                short = name.rpartition("-")[2]
                words = "%s is %s; let it go on first   launch recover %s"
                raise StartError("not-submitted", words % (name, state, short))
            job = slurm_submission.read(other).job
            if job is None:
                raise StartError("not-submitted", "%s has no job in Slurm that another could wait for" % name)
            found.append("%s:%s" % ("afterany" if condition == "any" else "afterok", job))
        return found

    def wake(self, run: Run) -> None:
        """Cancel the run's job if it waits or must end now; otherwise signal its script.

        If the job runs, its agent also reads the wish file, even if Slurm refuses. If the queue's answer is already
        late, do not wait for another: a job that waits is cancelled by the next sweep, or ends as it begins.
        """
        job = None if self._queue.is_late() else self._job_now(run)
        if job is None:
            return
        if job.state == slurm_jobs.WAITS:
            self._cancel(run, job)
        elif run.read_wish() == "cancel":
            slurm_submission.cancel(job.id)
        else:
            slurm_submission.signal_script(job.id)

    def entrance(self, run: Run) -> List[str]:
        """Return the `srun` command line for the first node of the run's job, which must be running."""
        try:
            job = self._ask_for_job(run)
            if job is None or job.state not in slurm_jobs.IN_NODES:
                raise CommandError("no-job", self._why_no_job(run))
            start = "\n".join(slurm_submission.start_of_agent("beside", run))
            srun = [path_of("srun"), *BESIDE, "--jobid=%s" % job.id, "/bin/sh", "-c", start, "sh"]
            return ["sh", "-c", FREED + 'exec "$@" 2>&1', "sh", *srun]  # the caller reads why it fails
        except SlurmSilentError as error:
            raise CommandError("silent", "Slurm does not answer: %s" % error) from None

    def end(self, run: Run) -> None:
        """Cancel the run's job."""
        job = self._job_now(run)
        if job is not None:
            self._cancel(run, job)

    def _cancel(self, run: Run, job: SlurmJob) -> None:
        """Cancel a job. Raises EndError with Slurm's words if it refuses and the job has not ended since."""
        refused = slurm_submission.cancel(job.id)
        if refused and self.remaining(run):
            raise EndError("Slurm does not cancel job %s of %s: %s" % (job.id, run.id, refused))

    def remaining(self, run: Run) -> str:
        """Return a message if the run's job still has its nodes or may still get some; otherwise an empty text."""
        try:
            job = self._ask_for_job(run)
        except SlurmSilentError as error:
            return "Slurm does not answer, so its job may still run: %s" % error
        if job is None or job.state == slurm_jobs.COMPLETES:
            return ""
        return "its job %s is %s" % (job.id, job.state)

    def strays(self, root: str) -> List[Orphan]:
        """Return the jobs of ended or removed runs below a root.

        A running job has LEAVING_S seconds to end after its run.
        """
        if not cluster_name():
            return []
        try:
            answer = ask(slurm_jobs.STARTED, MAX_S)
        except SlurmSilentError:
            return []
        jobs = slurm_jobs.parse_started(answer.text) if answer.code == 0 else []
        return [found for found in (_stray(root, job) for job in jobs) if found is not None]

    def standstill(self, run: Run) -> str:
        """Return the message for an agent whose heartbeat has stopped although Slurm reports its job as running."""
        verdict = self.judge([run])[run.id]
        return "no sign of life from its node; %s" % verdict.words if verdict.words else ""

    def _job_now(self, run: Run) -> Optional[SlurmJob]:
        """Return the job of a run if Slurm has it; None if it has ended or Slurm does not answer."""
        try:
            return self._ask_for_job(run)
        except SlurmSilentError:
            return None

    def _ask_for_job(self, run: Run) -> Optional[SlurmJob]:
        """Return the job of a run if Slurm has it, None if it has ended. Raises SlurmSilentError."""
        queue = _by_id(self._queue.answer_now(MAX_S))
        self._submitted.forget()
        job_id = self._job_of(run, slurm_submission.read(run))
        job = _own(run, queue.get(job_id or ""))
        if job is None and job_id is not None:
            job = self._look_beyond(run, job_id)
        return job if job is not None and not slurm_jobs.has_ended(job) else None

    def _job_of(self, run: Run, submission: SubmittedJobs) -> Optional[str]:
        """Return the id of a run's job, even if its `sbatch` gave no answer. Raises SlurmSilentError."""
        if submission.asked is not None:
            return slurm_submission.unknown_job(run, submission, self._submitted.answer())
        return submission.job

    def _why_no_job(self, run: Run) -> str:
        verdict = self.judge([run])[run.id]
        return verdict.words or str((verdict.evidence or {}).get("service") or "it has no job")

    def _is_older(self, run: Run, job: Optional[str], queue: Dict[str, SlurmJob]) -> bool:
        """Whether the queue's answer seems older than the run's last change.

        For a job that waits, this is true at most once for each folder of the run.
        """
        if job is None:
            return False
        if job not in queue:  # another agent may have submitted it since the answer
            return job not in self._missing
        last = run.last()
        if queue[job].state != slurm_jobs.WAITS or last is None or self._looked_at.get(run.id) == last.number:
            return False
        self._looked_at[run.id] = last.number
        # The job may have begun since the answer.
        return last.number > 1 and last.read_state().get("state") in (None, *LIVE)

    def _look_beyond(self, run: Run, job: str) -> Optional[SlurmJob]:
        """Return the run's job from the controller if the queue lacks it, unless its end is on record.

        Raises SlurmSilentError.
        """
        noted = slurm_submission.noted_end(run)
        return None if noted is not None and noted.id == job else self._lookup.find(run, job)

    def _look_up(self, missing: Dict[str, str]) -> None:
        """Ask accounting for the jobs of runs that the controller has forgotten.

        A recorded end does not change. Any other answer may: accounting learns of an end late.
        """
        now = time.monotonic()
        fresh = {
            run: job
            for run, job in missing.items()
            if job not in self._history or self._history[job].is_due(now)
        }
        if not fresh or now < self._accounts_silent_until_s:
            return
        # Ask for their names too: a controller that has lost its state reuses job numbers.
        names = "--name=" + ",".join(name for run in fresh for name in slurm_jobs.names_of(run))
        try:
            answer = ask([*slurm_jobs.HISTORY, ",".join(fresh.values()), names])
        except SlurmSilentError:
            self._accounts_silent_until_s = time.monotonic() + SILENCE_S
            return
        found = slurm_jobs.parse_history(answer.text) if answer.code == 0 else {}
        self._history.update(
            {job: _AccountingAnswer(found.get(job), time.monotonic()) for job in fresh.values()}
        )

    def _without_slurm(self, run: Run, submission: SubmittedJobs, words: str) -> RunLiveness:
        """Return the verdict while Slurm gives no answer.

        It is the recorded end of the run's job, unless Slurm may have started the job again.
        """
        noted = slurm_submission.noted_end(run)
        if noted is not None and noted.id == submission.job:
            verdict = self._verdict(run, submission, noted.id, noted, {})
            if verdict.state != "waiting" or run.read_wish() != "run":
                return verdict
        return _silent(run, words)

    def _verdict(
        self,
        run: Run,
        submission: SubmittedJobs,
        job_id: Optional[str],
        queued: Optional[SlurmJob],
        before: Dict[str, int],
    ) -> RunLiveness:
        has_begun = _has_begun(run)
        if job_id is None:
            if not submission.may_appear:
                return RunLiveness(GONE, words="no job was submitted for it")
            return _silent(run, "sbatch has given no answer; its job may still appear in the queue")
        noted = slurm_submission.noted_end(run)
        looked = self._history.get(job_id)
        if queued is not None:
            verdict = slurm_jobs.judge(queued, has_begun=has_begun, before=before.get(queued.id))
            if slurm_jobs.has_ended(queued):
                _note_end(run, queued, noted)
        elif looked is not None and looked.job is not None:
            verdict = slurm_jobs.judge_history(looked.job, has_begun=has_begun)
        elif noted is not None and noted.id == job_id:
            verdict = slurm_jobs.judge(noted, has_begun=has_begun)
        elif looked is None:
            return _silent(run, "sacct does not say what became of its job %s" % job_id)
        else:
            verdict = RunLiveness(GONE, {"service": "Slurm has forgotten its job %s" % job_id})
        if verdict.liveness == GONE and not has_begun and not verdict.state:
            log = _end_of_log(run)
            words = verdict.words or str((verdict.evidence or {}).get("service"))
            said = "its log ends: " + log.splitlines()[-1][-MAX_LINE:] if log else "it has written no log"
            evidence = {"service": "%s; %s" % (words, said), **({"log": log} if log else {})}
            return verdict._replace(state="failed", reason="never-started", evidence=evidence)
        if verdict.liveness == GONE and submission.refused and not verdict.state:
            words = "its job %s is not started again: %s" % (job_id, submission.refused)
            return verdict._replace(
                state="waiting", reason="client", evidence={"service": words}, words=words
            )
        return verdict


PROBE = SlurmLiveness()


class _AccountingAnswer(NamedTuple):
    """Accounting's answer about a job, None if it knows none, and its time."""

    job: Optional[SlurmJob]
    when_s: float

    def is_due(self, now_s: float) -> bool:
        """Whether to ask again."""
        is_final = self.job is not None and slurm_jobs.has_ended(self.job)
        return not is_final and now_s - self.when_s > AGAIN_S


def _own(run: Run, job: Optional[SlurmJob]) -> Optional[SlurmJob]:
    """Return the job if it is the run's: by its comment, its name or its folder; otherwise None.

    A controller that has lost its state reuses job numbers, so the number may belong to another job of the
    user. Raises SlurmSilentError.
    """
    if job is None or job.run_id == run.id:
        return job
    shown = _shown(job.id, int(time.monotonic() / SILENCE_S))
    return job if slurm_jobs.is_shown_of(shown, run.id, run.path) else None


@functools.lru_cache(maxsize=1024)
def _shown(job: str, _period: int) -> str:
    """Return the controller's answer about a job, asked at most once in a period. Raises SlurmSilentError."""
    return ask([*slurm_jobs.SHOW, job]).text


def _by_id(answer: str) -> Dict[str, SlurmJob]:
    return {job.id: job for job in slurm_jobs.parse_queue(answer)}


def _note_end(run: Run, job: SlurmJob, noted: Optional[SlurmJob]) -> None:
    """Record how a job ended, unless it is on record: without accounting, Slurm forgets it within minutes."""
    if noted is None or noted[:2] != job[:2]:
        with contextlib.suppress(OSError):  # a disk that refuses writes
            slurm_submission.note_end(run, job.id, job.state)


def _stray(root: str, job: slurm_jobs.ActiveJob) -> Optional[Orphan]:
    """Return a job as an orphan; None if a run needs the job, or if the job is not of this root."""
    run_id = job.run_below(root)
    if run_id is None or not RUN_ID.fullmatch(run_id):
        return None
    run = Run(os.path.join(root, "runs", run_id))

    def cancel() -> bool:
        return not slurm_submission.cancel(job.id)

    try:
        os.lstat(run.path)
    except FileNotFoundError:
        return Orphan("job", job.id, run_id, "its run was removed", cancel)
    except OSError:  # a home that is not mounted for a moment proves nothing about its runs
        return None
    if job.id not in slurm_submission.read(run).jobs:  # name and comment can be anyone's
        return None
    last = run.last()
    state = last.read_state() if last is not None else {}
    if job.state == slurm_jobs.WAITS and run.read_wish() != "run" and state.get("state") not in TERMINAL:
        return Orphan("job", job.id, run_id, "its run was asked to stop", cancel)
    age_s = time.time() - float(state.get("time") or 0.0)
    is_leaving = job.state != slurm_jobs.WAITS and 0 <= age_s < LEAVING_S
    if state.get("state") not in TERMINAL or is_leaving:
        return None
    return Orphan("job", job.id, run_id, "its run has ended", cancel)


def _if_it_can_continue(run: Run, verdict: RunLiveness) -> RunLiveness:
    """Return the verdict on a run; if its job is gone for good and its script cannot start again, the run has failed.

    The agent records that end itself, unless it was killed first because the script ignored TERM for too long.
    """
    if verdict.liveness != GONE or verdict.state in TERMINAL:
        return verdict
    from .. import restartable  # few jobs end in this way, and loading it would delay every launch

    if restartable.may_begin_again(run):
        return verdict
    words = verdict.words or str((verdict.evidence or {}).get("service"))
    line = "the time of its job was up: %s" % words if "TIMEOUT" in words.split() else words
    evidence = {**restartable.EVIDENCE, "line": line}
    return verdict._replace(state="failed", reason=restartable.REASON, evidence=evidence)


def _end_of_log(run: Run) -> str:
    """Return the end of the text that a job's script has printed, empty if it has printed none."""
    try:
        return read_tail(run.slurm_log, MAX_LOG).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _has_begun(run: Run) -> bool:
    """Whether an agent has worked on the run: it has a second folder, because the client that prepared it made the first."""
    numbers = run.numbers()
    return bool(numbers) and numbers[-1] > 1


def _silent(run: Run, words: str) -> RunLiveness:
    """Return the verdict while nothing is known of a run's job: a run that has begun keeps its recorded state."""
    state = "" if _has_begun(run) else "reserved"
    return RunLiveness(SILENT, {"service": words, "silent": True}, words, state)
