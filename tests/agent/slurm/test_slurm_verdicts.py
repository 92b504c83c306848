"""What becomes of runs by what Slurm's programs say, where the queue alone does not settle it.

The programs are stand-ins, which print what a real cluster did.
"""

import json
import re
import time
from pathlib import Path

import pytest
from agent.slurm.test_slurm_jobs import answers
from testbed.slurm_cluster import job_name
from testbed.toy import recorded_run

from launcher.agent.liveness.liveness import ALIVE, COMING_BACK, GONE, SILENT, EndError
from launcher.agent.liveness.slurm import slurm_liveness, slurm_lookup
from launcher.agent.liveness.slurm.slurm_liveness import PROBE, SlurmLiveness
from launcher.agent.record import secret
from launcher.agent.serving import contact
from launcher.agent.serving.requests import RequestError
from launcher.runs.follow.evidence import why_failed

RUN = "261126-cluster-aaaaaa"
UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTS = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


@pytest.fixture
def cluster(programs):
    """A cluster that has forgotten all jobs and keeps no accounts."""
    programs.put("squeue", "exit 0")
    programs.put("scontrol", UNKNOWN)
    programs.put("sacct", NO_ACCOUNTS)
    return programs


def made(folder, name=RUN, job="7", **more):
    """A run whose job was submitted, and has not begun as far as its record says."""
    run = recorded_run(folder / "root", name, "reserved", runtime={"kind": "slurm"})
    Path(run.slurm).write_text(json.dumps({"version": 1, "jobs": [job], "asked": None, **more}))
    secret.write(run, b'{"HF_TOKEN": "hf_of_nobody_12345678"}')
    return run


def shown(name, run, tmp_path):
    """A `scontrol` that prints what was recorded of a job, as if it were the run's."""
    text = next(said.text for command, said in answers(name) if command.startswith("scontrol"))
    (tmp_path / "shown").write_text(text.replace("launch:a-run", f"launch:{run.id}"))
    return f"cat {tmp_path}/shown"


@pytest.mark.parametrize(
    ("name", "liveness", "words"),
    [
        ("running", ALIVE, "its job 10 is RUNNING on node1"),
        ("held", COMING_BACK, "because it is held"),
        ("nodes-drained", COMING_BACK, "for nodes that are"),
    ],
)
def test_a_job_that_the_queue_lacks_is_what_the_controller_has_it_as(
    cluster, tmp_path, name, liveness, words
):
    """A queue that is behind ends no run, and erases no secret of it."""
    run = made(tmp_path)
    cluster.put("scontrol", shown(name, run, tmp_path))
    verdict = SlurmLiveness().judge([run])[run.id]
    assert (verdict.liveness, verdict.state in ("", "reserved")) == (liveness, True)
    assert words in verdict.words
    assert secret.read(run)
    assert cluster.asked("sacct") == []


@pytest.mark.parametrize("name", [job_name(RUN), f"launch-{RUN}"], ids=["new", "given until 2026-11-26"])
def test_a_job_whose_comment_its_cluster_has_changed_is_the_runs_by_its_name(cluster, tmp_path, name):
    run = made(tmp_path)
    cluster.put("scontrol", f"echo 'JobId=7 JobName={name} JobState=RUNNING Comment=billed'")
    assert SlurmLiveness().judge([run])[run.id].liveness == ALIVE
    cluster.put("squeue", "echo '7|RUNNING|None|N/A|N/A|1|node1|billed'")
    slurm_liveness._shown.cache_clear()
    assert SlurmLiveness().judge([run])[run.id].liveness == ALIVE


def test_accounting_is_asked_for_jobs_of_either_name(cluster, tmp_path):
    """One that was submitted before the name was another is still a run's."""
    run = made(tmp_path)
    SlurmLiveness().judge([run])
    (asked,) = cluster.asked("sacct")
    assert asked.split()[-1] == f"--name={job_name(RUN)},{RUN[-6:]}-launch-{RUN},launch-{RUN}"


@pytest.mark.parametrize(
    "answer",
    [
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "echo hello",
        "head -c 100000 /dev/urandom",
        "exit 0",
        "exit 3",
    ],
)
def test_a_controller_that_says_nothing_of_a_job_leaves_its_run_in_doubt(cluster, tmp_path, answer):
    """Whatever the queue lacks."""
    run = made(tmp_path)
    cluster.put("scontrol", answer)
    verdict = SlurmLiveness().judge([run])[run.id]
    assert (verdict.liveness, verdict.state) == (SILENT, "reserved")
    assert verdict.words.startswith("scontrol")
    assert secret.read(run)


@pytest.mark.parametrize("answer", [UNKNOWN, "echo 'JobId=7 JobName=mine JobState=RUNNING Comment=(null)'"])
def test_a_number_that_the_controller_does_not_know_or_has_given_again_is_of_no_run(
    cluster, tmp_path, answer
):
    """Two programs have said so; accounting is asked then."""
    run = made(tmp_path)
    cluster.put("scontrol", answer)
    verdict = SlurmLiveness().judge([run])[run.id]
    assert (verdict.liveness, verdict.state, verdict.reason) == (GONE, "failed", "never-started")
    assert verdict.evidence["service"].startswith("Slurm has forgotten its job 7; ")
    assert len(cluster.asked("sacct")) == 1


def test_a_job_that_could_not_begin_has_the_end_of_its_own_log_as_evidence(cluster, tmp_path):
    """No attempt has a log; the job's is on the cluster alone."""
    run = made(tmp_path)
    Path(run.slurm_log).write_text(
        "x" * 9999 + "\nLmod has detected the following error:\n  cuda/99 is unknown\n"
    )
    evidence = SlurmLiveness().judge([run])[run.id].evidence
    assert evidence["service"].endswith("; its log ends:   cuda/99 is unknown")
    assert evidence["log"].endswith("\nLmod has detected the following error:\n  cuda/99 is unknown")
    assert len(evidence["log"]) <= 2000


def test_an_end_that_the_controller_alone_remembers_is_put_on_record(cluster, tmp_path):
    """It will forget it too."""
    run = made(tmp_path, job="16")
    cluster.put("scontrol", shown("cancelled", run, tmp_path))
    slurm = SlurmLiveness()
    assert slurm.judge([run])[run.id].state == "stopped"
    cluster.put("scontrol", UNKNOWN)
    slurm.forget(run)
    assert slurm.judge([run])[run.id].state == "stopped"


def test_a_job_that_the_controller_remembers_is_asked_for_seldom(cluster, tmp_path, monkeypatch):
    """Of one in the queue nothing is asked, however many there are; of one whose end is final, once."""
    runs = [made(tmp_path, f"261126-cluster-aaaa{n:02}", str(n)) for n in range(50)]
    lines = "".join(f"{n}|PENDING|Dependency|N/A|N/A|1||launch:{run.id}\n" for n, run in enumerate(runs))
    (tmp_path / "queue").write_text(lines)
    cluster.put("squeue", f"cat {tmp_path}/queue")
    slurm = SlurmLiveness()
    assert {verdict.liveness for verdict in slurm.judge(runs).values()} == {COMING_BACK}
    assert cluster.asked("scontrol") == []
    (tmp_path / "queue").write_text("".join(lines.splitlines(keepends=True)[1:]))
    slurm.forget(runs[0])
    with monkeypatch.context() as patch:
        patch.setattr(slurm_lookup, "AGAIN_S", 0.0)
        for _ in range(5):
            slurm.judge(runs)
        assert cluster.asked("scontrol") == ["--oneliner show job 0"]
        cluster.put("scontrol", f"echo 'JobId=0 JobName={job_name(runs[0].id)} JobState=RUNNING'")
        slurm.forget(runs[0])
        for _ in range(5):
            slurm.judge(runs)
        assert len(cluster.asked("scontrol")) == 6
    for _ in range(5):
        slurm.judge(runs)
    assert len(cluster.asked("scontrol")) == 6


def test_a_controller_that_is_silent_is_asked_once_for_many_jobs(cluster, tmp_path):
    """Each question may take seconds."""
    runs = [made(tmp_path, f"261126-cluster-aaaa{n:02}", str(n)) for n in range(20)]
    cluster.put("scontrol", "exit 1")
    assert {verdict.liveness for verdict in SlurmLiveness().judge(runs).values()} == {SILENT}
    assert len(cluster.asked("scontrol")) == 1


DAMAGED = [
    '{"version":1,"jobs":5,"asked":null}',
    '{"version":1,"jobs":["1\\u0000; x"],"asked":null}',
    '{"version":1,"jobs":["--help"],"asked":null}',
    '{"version":1,"jobs":[7],"asked":null}',
    '{"version":1,"jobs":["7"],"asked":"now"}',
    '{"version":1,"jobs":["7"],"asked":1e999}',
    '{"version":1,"jobs":["7"],"asked":null,"refused":[]}',
    "[1]",
    "\0",
    "{",
]
"""What a job's own code may have put in the place of the record of its jobs."""


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_of_jobs_harms_no_other_run(cluster, tmp_path, text):
    """The run's own job is found by its comment; with none in the queue nothing keeps the run."""
    other, run, lost = (made(tmp_path, f"261126-cluster-aaaaa{n}") for n in range(3))
    for one in (run, lost):
        Path(one.slurm).write_text(text)
        Path(one.slurm_end).write_text(text)
    lines = (f"{n}|RUNNING|None|N/A|N/A|1|node1|launch:{one.id}" for n, one in ((7, other), (8, run)))
    cluster.put("squeue", "".join(f"echo '{line}'\n" for line in lines))
    slurm = SlurmLiveness()
    found = slurm.judge([other, run, lost])
    assert [found[one.id].words for one in (other, run)] == [
        "its job 7 is RUNNING on node1",
        "its job 8 is RUNNING on node1",
    ]
    assert (found[lost.id].liveness, found[lost.id].state) == (GONE, "")
    assert [slurm.job_id(one) for one in (other, run)] == ["7", None]


@pytest.mark.parametrize(
    "text",
    ['{"job":5,"state":"CANCELLED"}', '{"job":"7","state":["CANCELLED"]}', '{"job":"7","state":"x"}', "[]"],
)
def test_a_damaged_record_of_an_end_is_none(cluster, tmp_path, text):
    run = made(tmp_path)
    Path(run.slurm_end).write_text(text)
    assert (
        SlurmLiveness().judge([run])[run.id].evidence["service"].startswith("Slurm has forgotten its job 7; ")
    )


def test_a_record_that_may_not_be_opened_is_damaged(cluster, tmp_path):
    run = made(tmp_path)
    Path(run.slurm).unlink()
    Path(run.slurm).mkdir()
    assert SlurmLiveness().judge([run])[run.id].words == "no job was submitted for it"


def test_an_end_on_record_holds_while_slurm_is_silent(cluster, tmp_path):
    """A run that was stopped is not under way again."""
    run, other = made(tmp_path), made(tmp_path, "261126-cluster-aaaaa1", "8")
    cluster.put("squeue", f"echo '7|CANCELLED|None|N/A|N/A|1||launch:{run.id}'")
    slurm = SlurmLiveness()
    assert slurm.judge([run])[run.id].state == "stopped"
    cluster.put("squeue", "exit 1")
    slurm.forget(run)
    found = slurm.judge([run, other])
    assert (found[run.id].liveness, found[run.id].state) == (GONE, "stopped")
    assert found[other.id].liveness == SILENT


def test_an_end_after_which_slurm_may_start_the_job_again_leaves_doubt_while_it_is_silent(cluster, tmp_path):
    """But for a run that is to stop."""
    run = made(tmp_path)
    Path(run.slurm_end).write_text('{"job":"7","state":"PREEMPTED"}')
    cluster.put("squeue", "exit 1")
    assert SlurmLiveness().judge([run])[run.id].liveness == SILENT
    run.write_wish("stop")
    assert SlurmLiveness().judge([run])[run.id].liveness == GONE


def test_an_end_of_a_job_that_the_run_had_before_does_not_count(cluster, tmp_path):
    run = made(tmp_path)
    Path(run.slurm_end).write_text('{"job":"6","state":"CANCELLED"}')
    cluster.put("squeue", "exit 1")
    assert SlurmLiveness().judge([run])[run.id].liveness == SILENT


def trained(folder, consumed, **plan):
    """A run whose job was submitted, and whose script has trained; its agent was killed before it recorded an end."""
    run = made(folder, job="21")
    attempt = run.new_folder(run.last())
    Path(attempt.attempt).write_text(json.dumps({"version": 1, "kind": "attempt"}))
    attempt.write_state("running", began=True, consumed=consumed)
    attempt.release()
    Path(run.plan).write_text(json.dumps(plan))
    return run


@pytest.mark.parametrize(
    ("consumed", "plan", "state"),
    [
        ([], {}, ("failed", "not-restartable")),
        (["resume"], {}, ("waiting", "client")),
        ([], {"restart": True}, ("waiting", "client")),
    ],
)
def test_a_run_whose_job_is_gone_waits_for_another_only_if_its_script_can_continue(
    cluster, tmp_path, consumed, plan, state
):
    """Recover would cost an allocation for nothing. The script has ignored TERM, so its agent recorded no end."""
    run = trained(tmp_path, consumed, **plan)
    cluster.put("scontrol", shown("timeout", run, tmp_path))
    verdict = SlurmLiveness().judge([run])[run.id]
    assert (verdict.liveness, verdict.state, verdict.reason) == (GONE, *state)
    assert bool(secret.read(run)) == (state[0] == "waiting")
    hopeless = SlurmLiveness().hopeless(run)
    assert (hopeless and hopeless[:2]) == (state if state[0] == "failed" else None)
    if state[0] == "failed":
        assert verdict.evidence["line"] == "the time of its job was up: its job 21 is TIMEOUT"
        assert why_failed(verdict.evidence).startswith("the time of its job was up: ")
        assert "--set restart=true" in verdict.evidence["mend"]


def test_a_run_that_trains_keeps_its_state_while_no_controller_answers(cluster, tmp_path):
    """It is not known to come back, and it has not failed. A listing that waits 3 s for its host gets that answer."""
    run = trained(tmp_path, ["resume"])
    cluster.put("squeue", "sleep 60")
    began = time.monotonic()
    slurm = SlurmLiveness()
    verdict = slurm.judge([run])[run.id]
    assert time.monotonic() - began < 2.5
    slurm._queue.forget()
    assert (verdict.liveness, verdict.state) == (SILENT, "")
    assert re.fullmatch(r"squeue has not answered for \d s", verdict.words)


def test_a_script_that_cannot_continue_is_in_doubt_while_slurm_is_silent(cluster, tmp_path):
    """Slurm may have started its job again."""
    run = trained(tmp_path, [])
    Path(run.slurm_end).write_text('{"job":"21","state":"PREEMPTED"}')
    cluster.put("squeue", "exit 1")
    assert SlurmLiveness().judge([run])[run.id].liveness == SILENT
    assert secret.read(run)


GARBAGE = "echo 'scancel: error: garbage' >&2; exit 1"
"""How a `scancel` fails, in a shell."""


def in_queue(cluster, run, state):
    """Have the queue list the job of a run."""
    cluster.put("squeue", f"echo '7|{state}|None|N/A|N/A|1||launch:{run.id}'")
    PROBE.forget(run)


@pytest.mark.parametrize("wish", ["stop", "cancel"])
def test_why_slurm_does_not_cancel_a_job_that_waits_is_said_at_once(cluster, tmp_path, wish):
    """In its own words: no agent is there that would hear of the wish."""
    run = made(tmp_path)
    in_queue(cluster, run, "PENDING")
    cluster.put("scancel", GARBAGE)
    with pytest.raises(RequestError, match=f"job 7 of {RUN}: scancel: error: garbage$") as caught:
        contact.stop(run, wish)
    assert caught.value.code == "not-cancelled"
    assert run.read_wish() == wish


def test_a_job_that_runs_hears_of_a_wish_whatever_slurm_says(cluster, tmp_path):
    """Unless it is to be ended by force."""
    run = made(tmp_path)
    in_queue(cluster, run, "RUNNING")
    cluster.put("scancel", GARBAGE)
    assert contact.stop(run, "cancel") is None
    with pytest.raises(RequestError, match="garbage"):
        contact.stop(run, "cancel", by_force=True)


def test_a_job_that_ended_before_it_was_cancelled_is_no_failure(cluster, tmp_path):
    """Slurm does not know its number any more."""
    run = made(tmp_path)
    in_queue(cluster, run, "PENDING")
    cluster.put("scancel", f"echo '#!/bin/sh' >{cluster.folder}/squeue; exit 1")
    SlurmLiveness().end(run)
    in_queue(cluster, run, "RUNNING")
    cluster.put("scancel", "exit 1")
    with pytest.raises(EndError, match="scancel ended with 1"):
        SlurmLiveness().end(run)
