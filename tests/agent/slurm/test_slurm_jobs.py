"""What Slurm's programs printed about jobs in every state, and what becomes of a run by it.

The outputs are in slurm_outputs/, recorded from a real cluster by record.py beside them.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.agent.liveness.liveness import ALIVE, COMING_BACK, GONE, SILENT
from launcher.agent.liveness.slurm import slurm_jobs
from launcher.agent.liveness.slurm.slurm_jobs import (
    CANCELLED,
    SlurmJob,
    judge,
    judge_history,
    parse_history,
    parse_queue,
    parse_shown,
)

OUTPUTS = Path(__file__).parent / "slurm_outputs"
PROGRAMS = ("squeue", "scontrol", "sacct")


class Said(NamedTuple):
    """One program's answer, and its exit status."""

    text: str
    status: int


def answers(name):
    """What each command of a file printed, in its order, as (command, answer)."""
    pattern = r"^\$ (.*)\n((?:.*\n)*?)\[(\d+)\]\n"
    found = re.findall(pattern, (OUTPUTS / f"{name}.txt").read_text(), re.MULTILINE)
    return [(command, Said(text, int(status))) for command, text, status in found]


def of_job(name):
    """The answers of the three programs about the job of a file, and the job's id."""
    said = answers(name)
    assert [command.split()[0] for command, _ in said] == [*PROGRAMS]
    return *(answer.text for _, answer in said), said[1][0].split()[-1]


def queued(name):
    """The job of a file by squeue, None if it is not listed."""
    queue, _, _, job_id = of_job(name)
    return next((job for job in parse_queue(queue) if job.id == job_id), None)


WAITING = {
    "held": "because it is held: scontrol release {id}   on the login node",
    "begins-later": "for the time that it may begin at, to start about 20",
    "depends": "for another job",
    "over-the-limit-of-its-partition": "for ever: its `time` is above the limit of its partition",
    "more-nodes-than-there-are": "for ever: its partition has no such nodes",
    "nodes-drained": "for nodes that are down, drained or kept for jobs in partitions of a higher priority",
    "waits-for-cards": "for 2 x a100 on each of 2 nodes, to start about 20",
    "requeued": "for the time that it may begin at, to start about 20",
    "requeued-and-held": "because it is held: scontrol release {id}   on the login node",
    "preempted": "for the time that it may begin at, to start about 20",
    "node-failed": "for the time that it may begin at, to start about 20",
}


@pytest.mark.parametrize("name", WAITING)
def test_a_job_that_waits_is_to_come_and_says_what_for(name):
    """Before the run's first attempt it is reserved, after it resuming. squeue and scontrol say the same."""
    job = queued(name)
    verdict = judge(job, has_begun=False)
    assert (verdict.liveness, verdict.state) == (COMING_BACK, "reserved")
    assert judge(job, has_begun=True).state == "resuming"
    words = WAITING[name].format(id=job.id)
    assert verdict.words.startswith(f"its job {job.id} waits {words}")
    assert ("about" in verdict.words) == ("about" in words)
    shown = parse_shown(of_job(name)[1])
    assert judge(shown, has_begun=False).state == verdict.state
    assert judge(shown, has_begun=False).words.partition(" for ")[0] == verdict.words.partition(" for ")[0]


ALIVE_STATES = {
    "running": "RUNNING",
    "running-again": "RUNNING",
    "suspended": "SUSPENDED",
    "requeued-and-ending": "COMPLETING",
    "cancelled-and-ending": "COMPLETING",
}


@pytest.mark.parametrize("name", ALIVE_STATES)
def test_a_job_that_has_processes_is_alive(name):
    """Also one that is ending: whether it comes back is asked once it has ended."""
    job = queued(name)
    verdict = judge(job, has_begun=True)
    is_halted = name == "suspended"
    assert (verdict.liveness, verdict.state) == (ALIVE, "suspended" if is_halted else "")
    more = ": it trains on once Slurm resumes it" if is_halted else ""
    assert verdict.words == f"its job {job.id} is {ALIVE_STATES[name]} on node1{more}"
    assert judge(parse_shown(of_job(name)[1]), has_begun=True) == verdict


ENDED = {
    "completed": ("COMPLETED", "0:0"),
    "failed": ("FAILED", "3:0"),
    "killed": ("FAILED", "0:9"),
    "no-folder-for-its-output": ("FAILED", "0:53"),
    "cancelled-while-queued": ("CANCELLED", "0:0"),
    "cancelled": ("CANCELLED", "0:9"),
    "preempted-for-good": ("PREEMPTED", "0:9"),
    "timeout": ("TIMEOUT", "0:9"),
    "node-failed-without-requeue": ("NODE_FAIL", "0:0"),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_job_that_has_ended_is_gone(name):
    """squeue lists it no more; scontrol and, where there are accounts, sacct say how. Their exit status may differ."""
    _, shown, history, job_id = of_job(name)
    assert queued(name) is None
    state, code = ENDED[name]
    job = parse_shown(shown)
    verdict = judge(job, has_begun=True)
    assert verdict.liveness == GONE
    assert (job.state, job.exit) == (state, code)
    reason = f" ({job.reason}, exit code {code})" if state == "FAILED" else ""
    assert verdict.evidence == {"service": f"its job {job_id} is {state}{reason}"}
    by_accounts = parse_history(history)[job_id]
    assert (by_accounts.state, judge_history(by_accounts, has_begun=True).liveness) == (state, GONE)
    shown_as = {"CANCELLED": ("stopped", CANCELLED)}
    shown_as |= dict.fromkeys(("PREEMPTED", "TIMEOUT", "NODE_FAIL"), ("waiting", "client"))
    assert (verdict.state, verdict.reason) == shown_as.get(state, ("", None))
    assert slurm_jobs.has_ended(job)


def test_every_recorded_job_is_judged_here():
    """No state that was recorded is left out."""
    files = {path.stem for path in OUTPUTS.glob("*.txt") if not path.stem.startswith("probe-")}
    others = {
        "array-waits",
        "steps",
        "in-line",
        "unknown",
        "refusals",
        "no-controller",
        "silent-controller",
        "no-accounting",
    }
    assert files == {*WAITING, *ALIVE_STATES, *ENDED, *others}


def test_items_of_an_array_are_jobs_of_their_own():
    """squeue lists each by its number in the array."""
    jobs = parse_queue(of_job("array-waits")[0])
    number = of_job("array-waits")[3]
    assert [job.id for job in jobs if job.id.startswith(f"{number}_")] == [f"{number}_{n}" for n in (1, 2, 3)]


def test_the_steps_of_a_job_are_found_by_their_name():
    """A name that anybody chose may hold the separator. A job that nobody knows has none, and that is no error."""
    (command, said), (_, unknown) = answers("steps")
    job = command.split()[-1]
    assert slurm_jobs.parse_steps(said.text, slurm_jobs.MEMBERS) == [f"{job}.0"]
    assert slurm_jobs.parse_steps(said.text, "a|b") == [f"{job}.1"]
    assert (unknown.status, slurm_jobs.parse_steps(unknown.text, slurm_jobs.MEMBERS)) == (0, [])


def test_a_job_is_ours_by_its_comment():
    """Other jobs of the user stand in the same list."""
    jobs = parse_queue(of_job("waits-for-cards")[0])
    assert {job.run_id for job in jobs} == {"a-run", None}
    ours = next(job for job in jobs if job.run_id)
    assert (ours.resources, ours.nodes) == ("gres:gpu:a100:2", "2")


def test_a_job_that_only_the_accounts_know_is_in_doubt_until_they_say_that_it_ended():
    """sacct hears of changes late, and for ever has a job as running that a broken controller forgot."""
    for name in ("running-again", "suspended"):
        *_, history, job_id = of_job(name)
        job = parse_history(history)[job_id]
        verdict = judge_history(job, has_begun=True)
        assert verdict.liveness == SILENT
        assert verdict.words.endswith("by accounting, and not in the queue")


def test_the_last_start_of_a_job_counts():
    """A requeued job has a row for each start; until the next one, the last says that it will be started again."""
    *_, history, job_id = of_job("requeued-and-ending")
    assert parse_history(history)[job_id].state == "REQUEUED"
    assert judge_history(parse_history(history)[job_id], has_begun=True).liveness == COMING_BACK
    *_, history, job_id = of_job("running-again")
    assert [line.split("|")[1] for line in history.splitlines()] == ["REQUEUED", "RUNNING"]
    assert parse_history(history)[job_id].state == "RUNNING"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("unknown", "scontrol"),
        ("no-accounting", "sacct"),
        ("refusals", "scontrol requeue"),
        ("no-controller", "squeue"),
        ("no-controller", "scontrol"),
        ("no-controller", "sbatch"),
        ("silent-controller", "squeue"),
        ("silent-controller", "sbatch"),
    ],
)
def test_a_program_that_failed_says_nothing_of_any_job(name, command):
    """Whatever its words are, they are not taken for a job's."""
    said = next(answer for words, answer in answers(name) if words.startswith(command))
    assert said.status == 1
    assert parse_queue(said.text) == []
    assert parse_shown(said.text) is None
    assert parse_history(said.text) == {}


def test_sacct_knows_nothing_of_a_job_that_it_never_heard_of():
    """It prints nothing and succeeds."""
    said = dict(answers("unknown"))
    command = next(words for words in said if words.startswith("sacct"))
    assert (said[command].status, parse_history(said[command].text)) == (0, {})


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxJobsPerUserLimit", "for a limit of its user, account or QOS (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRES", "for a limit of its user, account or QOS (AssocGrpGRES)"),
        ("SomethingNew", "(SomethingNew)"),
        ("", "for its turn"),
        ("{nobody}", "({nobody})"),
    ],
)
def test_a_reason_that_nobody_translated_is_shown_as_it_is(reason, words):
    """It is Slurm's own, which its manual explains."""
    assert judge(SlurmJob("7", "PENDING", reason), has_begun=False).words == f"its job 7 waits {words}"


@pytest.mark.parametrize(
    "reason",
    ["ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:node[1-2]", "ReqNodeNotAvail, May be reserved"],
)
def test_what_follows_a_reason_does_not_hide_its_words(reason):
    """As `squeue` and `scontrol` print it."""
    expected = "its job 7 waits for nodes that are down, drained or reserved"
    assert judge(SlurmJob("7", "PENDING", reason), has_begun=False).words == expected
    shown = parse_shown(f"JobId=7 JobState=PENDING Reason={reason.replace(' ', '_')} Dependency=(null)")
    assert judge(shown, has_begun=False).words == expected


def test_a_state_that_nobody_knows_is_alive():
    """As SIGNALING, which a job is for a moment while it is told to make way."""
    assert judge(SlurmJob("7", "SIGNALING"), has_begun=True).liveness == ALIVE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7-00:00:00", 604800),
        ("1-02:03:04", 93784),
        ("1:30:00", 5400),
        ("10:00", 600),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
        ("", None),
    ],
)
def test_a_time_is_read_in_seconds(text, seconds):
    """As `sinfo` and `scontrol` write it."""
    assert slurm_jobs.seconds_of(text) == seconds


def test_a_comment_may_hold_the_separator():
    """It stands last."""
    job = parse_queue("7|RUNNING|None|N/A|N/A|1|node1|mine | launch:x\n")[0]
    assert (job.comment, job.run_id) == ("mine | launch:x", None)


@pytest.mark.parametrize(
    ("name", "comment", "folder", "run"),
    [
        ("x-launch-1126-a-x", "launch:1126-a-x", "/r/runs/1126-a-x", "1126-a-x"),
        ("launch-1126-a-x", "launch:1126-a-x", "/r/runs/1126-a-x", "1126-a-x"),
        ("y-launch-1126-a-x", "launch:1126-a-x", "/r/runs/1126-a-x", None),
        ("x-launch-1126-a-x", "launch:1126-a-x", "/other/runs/1126-a-x", None),
        ("x-launch-1126-a-x", "launch:1126-a-x", "/r/runs/1126-a-y", None),
        ("x-launch-1126-a-x", "(null)", "/r/runs/1126-a-x", None),
        ("mine", "launch:1126-a-x", "/r/runs/1126-a-x", None),
        ("launch-", "launch:", "/r/runs/", None),
    ],
)
def test_a_job_is_of_a_root_by_its_name_its_comment_and_its_folder(name, comment, folder, run):
    """All three are needed: a user may name jobs, and comment them, as they like."""
    (job,) = slurm_jobs.parse_started(f"7|PENDING|{name}|{comment}|{folder}\nno job\n")
    assert job.run_below("/r") == run
