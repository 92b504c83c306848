"""diagnose: a log from a file, from a pipe or of a run."""

import json
import subprocess

import pytest
from testbed.client import LAUNCH
from testbed.entries import know

from launcher.copy.local_copy import LocalCopy
from launcher.runs.follow.diagnosing import diagnosis_of
from launcher.transport.channel import AgentReply

LOG = """step 1
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    scaler.step(optimizer)
ValueError: Attempting to unscale FP16 gradients.
"""
LINE = "ValueError: Attempting to unscale FP16 gradients."


def test_a_person_sees_the_line_why_and_the_mend(client):
    """Of a log's file, in a few lines."""
    client.script(LOG, "crash.log")
    first, why, mend = client.ok("diagnose", "crash.log").splitlines()
    assert first == f"fp16-unscale   line 5: {LINE}"
    assert why.split()[0] == "why"
    assert "worker.prepare" in mend


def test_a_script_gets_one_object_from_a_pipe(client):
    """Whatever bytes it pipes in."""
    done = subprocess.run(
        [*LAUNCH, "diagnose", "-", "--json"],
        input=b"\xff\0" + LOG.encode(),
        capture_output=True,
        check=True,
        cwd=client.project,
        env=client.env,
    )
    told = json.loads(done.stdout)
    assert (told["version"], told["class"], told["line"], told["line_number"]) == (1, "fp16-unscale", LINE, 5)
    assert told["why"]
    assert told["remedy"]


def test_a_log_cannot_steer_the_terminal(client):
    """Its line is data."""
    client.script("ValueError: \x1b]0;title\x07\x9b2J\u202eno\n", "crash.log")
    out = client.ok("diagnose", "crash.log")
    assert not {char for char in out if not char.isprintable()} - {"\n"}


@pytest.mark.parametrize("words", [("nonsense",), ("missing.log", "--json"), (".",)])
def test_what_is_neither_file_nor_run_is_refused_with_the_next_command(client, words):
    """As every wrong word."""
    done = client.run("diagnose", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert words[0] in done.stderr
    assert "launch " in done.stderr


def attempt(client, number, state, log, **previous):
    """Put a numbered folder into the mirror of a run on a host that is away."""
    run = client.runs / "0101-toy-w8q2"
    folder = run / f"{number:04d}"
    folder.mkdir(parents=True)
    host = {"name": "away", "address": "127.0.0.1", "port": 1}
    know(run.name, client.runs, home=client.home, host=host)
    kind = "contact" if log is None else "attempt"
    (folder / "attempt.json").write_text(json.dumps({"kind": kind, "previous": previous or None}))
    (folder / "state.json").write_text(json.dumps(state))
    if log is not None:
        (folder / "log.txt").write_text(log)


def why_of_the_run(client):
    told = json.loads(client.ok("diagnose", "w8q2", "--json"))
    return told["class"], told["line_number"]


FAILED = {"state": "failed", "reason": "exit-nonzero", "evidence": {"exit": 1, "signal": None}}
KEY = LOG.replace(LINE, "KeyError: 'x'")


def test_the_log_of_a_runs_last_failed_attempt_is_read(client):
    """One that succeeded behind it aside."""
    attempt(client, 2, FAILED, KEY)
    attempt(client, 3, {**FAILED, "state": "resuming"}, LOG)
    attempt(client, 4, {"state": "succeeded"}, "")
    assert why_of_the_run(client) == ("fp16-unscale", 5)


def test_what_the_agent_said_of_an_attempt_stands(client):
    """It knew more than the log."""
    evidence = {"class": "not-learning", "line": "step 1", "why": "no weight moved", "exit": 1}
    attempt(client, 2, {**FAILED, "evidence": evidence}, LOG)
    assert why_of_the_run(client) == ("not-learning", 1)


def test_how_an_attempt_ended_counts_where_its_log_is_silent(client):
    """By its own word or by that of the folder behind it."""
    attempt(client, 2, {"state": "running"}, "step 1\n")
    attempt(client, 3, {"state": "interrupted"}, None, container={"exit": 137, "oom": True})
    assert why_of_the_run(client)[0] == "host-oom-killed"


def test_a_failed_attempt_is_never_none(client):
    """Exit 0 without the script's own word is a failure that no log shows."""
    evidence = {"exit": 0, "signal": None, "marker": None}
    attempt(
        client, 2, {"state": "failed", "reason": "no-completion-marker", "evidence": evidence}, "step 1\n"
    )
    assert why_of_the_run(client)[0] == "no-completion-marker"


def test_a_run_is_diagnosed_as_it_was_judged(client):
    """By its exit status, which the log does not show, or by the doubt about a success."""
    evidence = {"class": "unknown", "why": "it ended with exit status 3", "exit": 3}
    attempt(client, 2, {**FAILED, "evidence": evidence}, "Error: no rows\n")
    assert why_of_the_run(client) == ("exit-nonzero", None)
    (client.runs / "0101-toy-w8q2/0002/state.json").write_text(json.dumps({"state": "succeeded"}))
    assert why_of_the_run(client) == ("none", None)
    doubt = {"class": "user-code-error", "line": "KeyError: 'x'", "why": "the log ends with it"}
    state = {"state": "succeeded", "evidence": {"exit": 0, "doubt": doubt}}
    (client.runs / "0101-toy-w8q2/0002/state.json").write_text(json.dumps(state))
    (client.runs / "0101-toy-w8q2/0002/log.txt").write_text(KEY)
    assert why_of_the_run(client) == ("user-code-error", 5)
    doubt = {"class": "no-right-answer", "line": None, "why": "accuracy 0.00", "mend": "compare some answers"}
    (client.runs / "0101-toy-w8q2/0002/state.json").write_text(
        json.dumps({"state": "succeeded", "evidence": {"exit": 0, "doubt": doubt}})
    )
    said = client.ok("diagnose", "w8q2")
    assert said.startswith("no-right-answer\n")
    assert "mend    compare some answers" in said


def test_a_run_without_a_failed_attempt_says_so(client):
    """One that runs, too."""
    attempt(client, 2, {"state": "running"}, LOG)
    assert why_of_the_run(client) == ("none", None)
    assert "no attempt of 0101-toy-w8q2 has failed" in client.ok("diagnose", "w8q2")


KILLED = {
    "class": "preempted",
    "why": "it was ended from outside by signal 9",
    "mend": "find out what ends processes",
    "signal": 9,
}


@pytest.mark.parametrize("judged", ["evidence", "failure"])
@pytest.mark.parametrize(
    "later",
    [
        {"state": "waiting", "reason": "secret", "evidence": {"secrets": "missing: TOKEN"}},
        {"state": "running"},
        {"state": "resuming", "reason": "host-shutdown"},
    ],
    ids=lambda state: state["state"],
)
def test_what_the_agent_judged_is_told_though_the_run_waited_or_lost_its_agent_later(client, judged, later):
    """`ps` tells it, too. It may have been judged by an agent that died before it wrote the end."""
    attempt(client, 2, {"state": "running", judged: KILLED}, "step 1\n")
    attempt(client, 3, later, "step 2\n")
    attempt(client, 4, {"state": "succeeded"}, "step 3\n")
    assert why_of_the_run(client) == ("preempted", None)
    assert KILLED["why"] in client.ok("diagnose", "w8q2")


def test_a_run_that_was_interrupted_says_so_and_what_goes_on(client):
    """Its host says it, or its record here while that is away."""
    attempt(client, 2, {"state": "running"}, "step 1\n")
    attempt(client, 3, {"state": "interrupted"}, None)
    told = client.ok("diagnose", "w8q2")
    assert told.startswith("interrupted\n")
    assert "launch recover w8q2     its training may still run" in told
    assert "unknown" not in told
    assert "nobody knows" not in told


def test_a_run_that_its_user_stopped_did_not_fail(client):
    """Though no record says how its attempt ended."""
    attempt(client, 2, {"state": "running"}, "step 1\n")
    attempt(client, 3, {"state": "stopped", "reason": "by-user-now"}, None)
    assert why_of_the_run(client) == ("stopped", None)


def test_an_interrupted_run_is_diagnosed_by_what_its_host_says(tmp_path):
    """No record says so: nobody lives to write it. What failed earlier is not what is the matter now."""
    local_copy = LocalCopy("0101-toy-w8q2", tmp_path)
    (local_copy.folder / "0002").mkdir(parents=True)
    (local_copy.folder / "0002" / "attempt.json").write_text(json.dumps({"kind": "attempt"}))
    (local_copy.folder / "0002" / "state.json").write_text(json.dumps({"state": "running"}))
    assert diagnosis_of(local_copy) is None
    state = {"state": "interrupted", "attempt": 1}
    local_copy.sync.apply(AgentReply({"state": state, "parts": []}, b""))
    assert diagnosis_of(local_copy).name == "interrupted"


def test_a_run_that_was_stopped_on_a_full_disk_says_what_is_lost(tmp_path):
    """It did not fail, but its record ends when the disk was full."""
    local_copy = LocalCopy("0101-toy-w8q2", tmp_path)
    evidence = {"disk": "full: its later output and metrics, and its end, were not recorded"}
    state = {"state": "stopped", "reason": "by-user", "evidence": evidence}
    local_copy.sync.apply(AgentReply({"state": state, "parts": []}, b""))
    found = diagnosis_of(local_copy)
    assert (found.name, "disk was full: its later output" in found.why) == ("stopped", True)
    assert "launch gc --host" in found.mend
