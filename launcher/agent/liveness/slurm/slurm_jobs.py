"""Parse the answers of Slurm's programs about jobs, and judge runs by them. This module starts no program.

    jobs = {job.id: job for job in parse_queue(answer_to(QUEUE))}
    verdict = judge(jobs["7"], has_begun=False)

`squeue` lists jobs that wait, run, or ended within the last minutes. `sacct` lists all jobs, where the
cluster keeps accounting; it learns of changes seconds late. States and reasons are those of Slurm 22.05. An
unknown state counts as alive: to treat a living job as gone would start its run twice.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..liveness import ALIVE, COMING_BACK, GONE, SILENT, RunLiveness

QUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%S|%b|%D|%N|%k")
"""Asks for all jobs of a user that the controller remembers, including those that ended minutes ago."""
SUBMITTED = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%Z|%k")
"""Asks for the same jobs: the folder and the comment that each was submitted with."""
STARTED = ("squeue", "--me", "--noheader", "--array", "--format=%i|%T|%j|%k|%Z")
"""Asks for the jobs of a user that have not ended: their names and working folders."""
STEPS = ("squeue", "--me", "--steps", "--noheader", "--format=%i|%j", "--jobs")
"""Asks for the running steps of the job whose id follows. Prints nothing and succeeds for an unknown job."""
SHOW = ("scontrol", "--oneliner", "show", "job")
"""Asks for the job whose id follows."""
PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
"""Asks for the limits of all partitions."""
HISTORY = (
    *("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"),
    *("--format=JobID,State,ExitCode,Reason,NodeList", "--jobs"),
)
"""Asks for each start of the jobs whose ids follow, separated by commas."""
CANCELLED = "cancelled-in-slurm"
"""The reason of a run whose job was cancelled by a person."""
NEVER = "DependencyNeverSatisfied"
"""The reason of a job that was cancelled because the job before it did not end as asked."""
MEMBERS = "launch-members"
"""The name of the job step that runs one member of the attempt on each node."""
COMMENT = "launch:"
"""The prefix of the comment of our jobs; the run's id follows."""

WAITS, COMPLETES = "PENDING", "COMPLETING"
IN_NODES = frozenset(("RUNNING", "SUSPENDED", "STOPPED"))
"""The states of a job that has its nodes and accepts another step."""
_HALTED = frozenset(("SUSPENDED", "STOPPED"))
_TO_COME = frozenset(("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
_TAKEN = frozenset(("NODE_FAIL", "PREEMPTED", "TIMEOUT", "BOOT_FAIL"))
_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "DEADLINE", "REVOKED")) | _TAKEN

_NODES_TAKEN = "Nodes required for job are"
"""The prefix of a long reason: … DOWN, DRAINED or reserved for jobs in higher priority partitions."""
_REASONS = {
    "Resources": "for free nodes",
    "Priority": "for the jobs before it",
    "BeginTime": "for the time that it may begin at",
    "Dependency": "for another job",
    "Licenses": "for a license",
    "Reservation": "for its reservation to begin",
    "JobHeldUser": "because it is held: scontrol release {id}   on the login node",
    "JobHeldAdmin": "because an administrator holds it",
    "job requeued in held state": "because it is held: scontrol release {id}   on the login node",
    "launch failed requeued held": "because its node could not start it, held: scontrol release {id}   on the login node",
    "DependencyNeverSatisfied": "for ever: the job that it depends on has failed",
    "PartitionTimeLimit": "for ever: its `time` is above the limit of its partition",
    "PartitionNodeLimit": "for ever: it has more `nodes` than its partition allows",
    "PartitionConfig": "for ever: its partition has no such nodes",
    "PartitionDown": "because its partition starts no jobs at present",
    "PartitionInactive": "because its partition starts no jobs at present",
    "ReqNodeNotAvail": "for nodes that are down, drained or reserved",
    _NODES_TAKEN: "for nodes that are down, drained or kept for jobs in partitions of a higher priority",
}
TURNS = frozenset(("Resources", "Priority"))
"""The reasons of a job that waits only for its turn."""
_ASIDE = (
    *("BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin"),
    *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "PartitionDown", "PartitionInactive"),
    *("JobArrayTaskLimit", "Licenses", "Reservation", "ReservationDeleted", "ReqNodeNotAvail"),
    *("job requeued in held state", "launch failed requeued held"),
)
"""The reasons of a job that would not start even if it were the first in the queue."""
_ESTIMATED = frozenset(("", "Resources", "Priority", "BeginTime"))
"""The reasons with which Slurm's start time is current; with others it may be an old estimate."""
_CARDS = re.compile(r"gpu(?::([a-z]\w*))?(?::(\d{1,9}))?", re.IGNORECASE)
_LIMITS = re.compile(r"(QOS|Assoc|MaxJobsPer)\w*")


class SlurmJob(NamedTuple):
    """One start of a job as a program prints it, in Slurm's words.

    Fields that a program does not print are empty. `starts` is a time of the cluster's clock, an estimate
    while the job waits; `resources` are those of each node.
    """

    id: str
    state: str
    reason: str = ""
    exit: str = ""
    starts: str = ""
    resources: str = ""
    nodes: str = ""
    where: str = ""
    comment: str = ""

    @property
    def run_id(self) -> Optional[str]:
        """The run that it was submitted for; None for any other job of the user."""
        return self.comment[len(COMMENT) :] if self.comment.startswith(COMMENT) else None


def parse_queue(text: str) -> List[SlurmJob]:
    """Parse an answer to QUEUE; each item of an array is a job.

    A line that does not describe a job is left out.
    """
    jobs = []
    for line in text.splitlines():
        fields = [_said(field) for field in line.split("|", 7)]
        if len(fields) == 8:
            job_id, state, reason, starts, resources, nodes, where, comment = fields
            jobs.append(SlurmJob(job_id, state, reason, "", starts, resources, nodes, where, comment))
    return jobs


class ActiveJob(NamedTuple):
    """A job that has not ended, as `squeue` prints it."""

    id: str
    state: str
    name: str
    comment: str
    folder: str

    def run_below(self, root: str) -> Optional[str]:
        """Return the run below a root that the job is for; None if its name, comment or folder differs."""
        run = self.comment[len(COMMENT) :]
        words = (self.comment, self.folder)
        ours = (COMMENT + run, os.path.join(root, "runs", run))
        return run if run and words == ours and self.name in names_of(run) else None


def name_of(run: str) -> str:
    """Return the name of the jobs of a run, such as `train-c9alrh`: `squeue` shows its first 8 letters."""
    return run.partition("-")[2]


def names_of(run: str) -> Tuple[str, ...]:
    """Return the names that a job of a run may have: the current one, and those used until 2026-11."""
    return name_of(run), "%s-launch-%s" % (run.rpartition("-")[2], run), "launch-%s" % run


def parse_started(text: str) -> List[ActiveJob]:
    """Parse an answer to STARTED. A line that does not describe a job is left out."""
    rows = (line.split("|", 4) for line in text.splitlines())
    return [ActiveJob(*map(_said, fields)) for fields in rows if len(fields) == 5]


def submitted_for(text: str, run: str, folder: str) -> List[str]:
    """Return the ids of a run's jobs from an answer to SUBMITTED.

    A job matches by its folder or by its comment. The comment is not enough: a cluster may set it itself.
    """
    rows = (line.strip().partition("|")[::2] for line in text.splitlines())
    return [job for job, of in rows if of.startswith(folder + "|") or of.endswith("|" + COMMENT + run)]


def parse_steps(text: str, name: str) -> List[str]:
    """Return the ids of the steps with a name, such as 7.1, from an answer to STEPS."""
    rows = (line.strip().split("|", 1) for line in text.splitlines())
    return [fields[0] for fields in rows if len(fields) == 2 and fields[1] == name]


def parse_shown(text: str) -> Optional[SlurmJob]:
    """Parse an answer to SHOW for a job that is not an array; None for any other text."""
    found = {key: _said(value) for key, value in _values(text).items()}
    if "JobId" not in found or "JobState" not in found:
        return None
    return SlurmJob(
        found["JobId"],
        found["JobState"],
        found.get("Reason", "").replace("_", " "),
        found.get("ExitCode", ""),
        found.get("StartTime", ""),
        found.get("TresPerNode", ""),
        found.get("NumNodes", ""),
        found.get("NodeList", ""),
        found.get("Comment", ""),
    )


def is_shown_of(text: str, run: str, folder: str) -> bool:
    """Whether an answer to SHOW is about a job of a run.

    The job's name or its working folder proves it: no other job uses the run's folder. A user may rename a
    job, and a cluster may set all comments itself.
    """
    values = _values(text)
    return values.get("JobName") in names_of(run) or values.get("WorkDir") == folder


def makes_way(text: str) -> bool:
    """Whether an answer to SHOW reports that preemption of the job has begun."""
    return bool(_said(_values(text).get("PreemptTime", "")))


def restarts(text: str) -> int:
    """Return how often Slurm has restarted a job, or is about to, from an answer to SHOW."""
    found = _values(text).get("Restarts", "")
    return int(found) if re.fullmatch("[0-9]{1,9}", found) else 0


def limit_s(text: str, names: Sequence[str]) -> Optional[int]:
    """Return the least time limit of a job that requests none, in seconds, from an answer to PARTITIONS.

    None if no named partition has a limit. Without names, the default partition counts.
    """
    found = []
    for line in text.splitlines():
        values = _values(line)
        if values.get("PartitionName") in names or (not names and values.get("Default") == "YES"):
            times = (seconds_of(values.get(key, "")) for key in ("DefaultTime", "MaxTime"))
            found += [time for time in times if time][:1]
    return min(found, default=None)


def reason_of_end(text: str) -> str:
    """Return the state in which a job that got TERM and is not requeued will end, from an answer to SHOW."""
    if makes_way(text):
        return "PREEMPTED"
    values = _values(text)
    ran, limit = (seconds_of(values.get(key, "")) for key in ("RunTime", "TimeLimit"))
    return "CANCELLED" if ran is None or limit is None or ran < limit else "TIMEOUT"


def _values(text: str) -> Dict[str, str]:
    """Return the values of an answer by `scontrol --oneliner`, the first one of each key."""
    values: Dict[str, str] = {}
    for key, value in re.findall(r"(?:^| )([A-Z]\w*)=(\S*)", text):
        values.setdefault(key, value)
    return values


def seconds_of(text: str) -> Optional[int]:
    """Return a time such as 1-02:03:04 or 30:00 in seconds; None for any other text, such as `infinite`."""
    parts = re.fullmatch(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})", text)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def asked_s(text: str) -> Optional[int]:
    """Return a time limit as given to sbatch in seconds, rounded up to whole minutes.

    Examples are 90 (minutes), 1:30:00 and 2-12 (days and hours). None if there is no limit, and for any
    other text.
    """
    parts = re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", text)
    if parts is None:
        return None
    days, *numbers = (int(part or 0) for part in parts.groups())
    begins_with_hours = parts[1] is not None or parts[4] is not None
    hours, minutes, seconds = numbers if begins_with_hours else (0, *numbers[:2])
    return ((days * 24 + hours) * 60 + minutes + -(-seconds // 60)) * 60 or None


def parse_history(text: str) -> Dict[str, SlurmJob]:
    """Parse an answer to HISTORY: the last start of each job by its id."""
    jobs = {}
    for line in text.splitlines():
        fields = [_said(field) for field in line.split("|")]
        if len(fields) == 5:
            job_id, state, code, reason, where = fields
            # The user who cancelled it follows in the same field.
            jobs[job_id] = SlurmJob(job_id, state.split(" ")[0], reason, code, where=where)
    return jobs


def _said(value: str) -> str:
    value = value.strip()
    return "" if value in ("None", "N/A", "(null)", "Unknown", "None assigned") else value


def judge(job: SlurmJob, *, has_begun: bool, before: Optional[int] = None) -> RunLiveness:
    """Return the verdict on a run from its job as `squeue` or `scontrol` reports it.

    `has_begun`: an attempt was made before. `before`: the number of jobs before it in the queue, None if
    unknown.
    """
    if job.state == WAITS or job.state in _TO_COME:
        state = "resuming" if has_begun else "reserved"
        words = _waiting_words(job, before)
        return RunLiveness(COMING_BACK, {"service": words}, words, state)
    if job.state in _ENDED:
        return _ended(job)
    where = " on %s" % job.where if job.where else ""
    if job.state in _HALTED:
        words = "its job %s is %s%s: it trains on once Slurm resumes it" % (job.id, job.state, where)
        return RunLiveness(ALIVE, {"service": words}, words, "suspended" if has_begun else "reserved")
    return RunLiveness(ALIVE, words="its job %s is %s%s" % (job.id, job.state, where))


def _ended(job: SlurmJob) -> RunLiveness:
    """Return the verdict on a job that has ended.

    A run whose job Slurm took away may continue if a client asks for it. Slurm itself restarts only jobs that
    have not ended: those are pending.
    """
    said = [job.reason, "exit code %s" % job.exit if job.exit else ""] if job.state == "FAILED" else []
    if job.reason == NEVER:
        said = ["the job that it waited for has not ended as asked"]
    why = ", ".join(filter(None, said))
    words = "its job %s is %s%s" % (job.id, job.state, " (%s)" % why if why else "")
    if job.state == "CANCELLED":
        return RunLiveness(GONE, {"service": words}, words, "stopped", CANCELLED)
    if job.state in _TAKEN:
        return RunLiveness(GONE, {"service": words}, words, "waiting", "client")
    return RunLiveness(GONE, {"service": words}, words)


def has_ended(job: SlurmJob) -> bool:
    """Whether a job has ended for good."""
    return job.state in _ENDED


def judge_history(job: SlurmJob, *, has_begun: bool) -> RunLiveness:
    """Return the verdict on a job that only `sacct` knows.

    If `sacct` shows no end of the job, the controller has lost it.
    """
    if job.state in _ENDED or job.state in _TO_COME:
        return judge(job, has_begun=has_begun)
    words = "its job %s is %s by accounting, and not in the queue" % (job.id, job.state)
    return RunLiveness(SILENT, {"service": words}, words, "" if has_begun else "reserved")


def is_in_line(reason: str) -> bool:
    """Whether a job that waits for this reason is in line, so that it counts as being before later jobs.

    It is not in line if something else holds it back, such as a limit of its user, a dependency or a begin time.
    """
    return _first_word(reason) not in _ASIDE and not _LIMITS.fullmatch(reason)


def _first_word(reason: str) -> str:
    """Return a reason without its details, as in `ReqNodeNotAvail, UnavailableNodes:node[1-2]`."""
    return reason.partition(",")[0]


def _waiting_words(job: SlurmJob, before: Optional[int]) -> str:
    reason = _REASONS.get(_first_word(job.reason))
    if reason is not None:
        reason = reason.replace("{id}", job.id)
    elif job.reason.startswith(_NODES_TAKEN):
        reason = _REASONS[_NODES_TAKEN]
    elif _LIMITS.fullmatch(job.reason):
        reason = "for a limit of its user, account or QOS (%s)" % job.reason
    else:
        reason = "for its turn" if not job.reason else "(%s)" % job.reason
    line = ", %d before it" % before if before and job.reason in TURNS else ""
    cards = _CARDS.search(job.resources)
    if cards and (job.reason == "Resources" or line):
        each = " on each of %s nodes" % job.nodes if job.nodes not in ("", "1") else ""
        reason = "for %s x %s%s" % (cards[2] or "1", cards[1] or "a card", each)
    elif line:
        reason = _REASONS["Resources"]
    is_estimated = job.starts and job.reason in _ESTIMATED
    about = ", to start about %s" % job.starts.replace("T", " ")[:16] if is_estimated else ""
    return "its job %s waits %s%s%s" % (job.id, reason, line, about)
