"""`on_end`: the words of a notice, and that it is sent once for each end."""

import os
import sys
from pathlib import Path

import pytest
from testbed.client import is_gone

from launcher.agent.record.rundir import Run
from launcher.agent.training import on_end
from launcher.transport.agent_file import agent_file

VALUES = {
    "run": "261123-sft-k3f9w2", "job": "sft", "host": "lab", "attempt": 2, "step": 300, "steps": 300, "loss": 0.0034881,
}  # fmt: skip
PRINTS = """
import json, os, sys
print("x" * 9000, json.load(sys.stdin)["run"], os.environ["LAUNCH_TEXT"])
sys.exit(3)
"""


@pytest.fixture
def run(tmp_path):
    run = Run(str(tmp_path / "runs" / VALUES["run"]))
    run.make()
    return run


def send(run, words, state="succeeded", reason="completed", secrets=None, begun=1):
    notice = on_end.Notice(words, run.path, dict(os.environ), secrets or {})
    return on_end.send_once(run, notice, on_end.EndNotice(state, reason, VALUES), begun, lambda: None)


@pytest.mark.parametrize(
    ("state", "reason", "more", "text"),
    [
        ("succeeded", "completed", {}, "succeeded: sft k3f9w2 on lab, step 300 of 300, loss 0.003488"),
        ("failed", "oom", {"loss": "nan"}, "failed (oom): sft k3f9w2 on lab, step 300 of 300"),
        ("stopped", "by-user", {"steps": None, "loss": None}, "stopped (by-user): sft k3f9w2 on lab, step 300"),
        ("failed", "exit-code", {"step": None, "loss": None}, "failed (exit-code): sft k3f9w2 on lab"),
    ],
)  # fmt: skip
def test_one_line_says_how_it_ended(state, reason, more, text):
    """The same line is what Slack and Discord show."""
    ending = on_end.EndNotice(state, reason, {**VALUES, **more})
    body = ending.body()
    assert (ending.text, body["text"], body["content"]) == (text, text, text)
    assert (body["version"], body["kind"], body["state"]) == (1, "run-ended", state)


def test_what_goes_wrong_is_said_with_the_end_of_what_it_printed(run):
    """The exit code and its last words; a program that is not there; a secret that is not there."""
    problem = send(run, [sys.executable, "-c", PRINTS])["on_end"]
    assert problem.startswith("exit 3: x")
    assert problem.endswith(f"x {VALUES['run']} succeeded: sft k3f9w2 on lab, step 300 of 300, loss 0.003488")
    assert len(problem) < 400
    assert send(run, ["/no/such/program"], "failed") == {
        "on_end": "/no/such/program: No such file or directory"
    }
    assert send(run, ["https://x.invalid/$HOOK"], "stopped") == {"on_end": "secret HOOK: it is not here"}


def test_it_is_sent_once_for_each_end(run):
    """A successor that comes to the same end sends nothing; one that comes to another end does."""
    ledger = Path(run.path) / "ledger"
    words = ["sh", "-c", "echo $LAUNCH_STATE >> ledger"]
    for state in ("succeeded", "succeeded", "failed", "succeeded"):
        assert send(run, words, state) == {}
    assert ledger.read_text() == "succeeded\nfailed\n"


def test_the_mark_says_how_it_ended_until_another_attempt_begins(run):
    """For the successor of an agent that dies before it has recorded the end."""
    assert on_end.end_mark(run, 1) == {}
    send(run, ["true"], begun=2)
    known = {"step": 300, "loss": 0.0034881}
    assert on_end.end_mark(run, 2) == {"begun": 2, "state": "succeeded", "reason": "completed", **known}
    assert on_end.end_mark(run, 3) == {}


def test_one_that_hangs_is_ended_with_all_that_it_started(run, monkeypatch):
    """In time, though it does not heed SIGTERM and its child has the pipe; the heartbeat goes on meanwhile."""
    monkeypatch.setattr(on_end, "LIMIT_S", 1.0)
    beats = []
    script = "trap '' TERM; sleep 600 & echo $$ $! > pids; sleep 600"
    notice = on_end.Notice(["sh", "-c", script], run.path, dict(os.environ), {})
    sent = on_end.send_once(
        run, notice, on_end.EndNotice("failed", "oom", VALUES), 1, lambda: beats.append(1)
    )
    assert sent == {"on_end": "was ended after 1 s"}
    assert len(beats) > 2
    assert [pid for pid in (Path(run.path) / "pids").read_text().split() if not is_gone(int(pid))] == []


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://127.0.0.1:1/x", "http://[", "ftp://x/"])
def test_an_address_that_does_not_answer_is_told(run, tmp_path, monkeypatch, address):
    """Whatever the secret holds: no traceback, and no other scheme."""
    (tmp_path / "agent.pyz").write_bytes(agent_file().data)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "agent.pyz")])
    problem = send(run, ["$HOOK"], secrets={"HOOK": address})["on_end"]
    assert "the webhook" in problem
    assert "Traceback" not in problem


def test_a_secret_of_which_the_start_is_cut_off_is_not_said(run):
    """Only the end of what it printed is kept."""
    token = "hf_0123456789" * 4
    words = ["sh", "-c", f'echo "$TOKEN"; printf %{on_end.MAX_MESSAGE - 20}s end; exit 1']
    said = send(run, words, secrets={"TOKEN": token})["on_end"]
    assert said.endswith("end")
    assert token[-8:] not in said
