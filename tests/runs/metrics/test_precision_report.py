"""`launch explain RUN`: which precision a run used, beside what its card wants."""

import json
import re

import pytest
from testbed.client import until
from testbed.pty_run import in_terminal, without_style

from launcher.copy.local_copy import LocalCopy
from launcher.runs.follow.precision_report import known_precision

REPORTS = """
import json, os, socket, sys, time

def report(**seen):
    event = {"kind": "evidence", "rank": 0, "time": time.time(), "source": "hook", "values": {"precision_seen": seen}}
    agent.sendall(json.dumps(event).encode() + b"\\n")

agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["LAUNCH_SOCKET"])
half = {"float16": 4}
report(device="cpu", steps=1, trainable=half, gradients=half, frozen=half, computed=half, scaler=True, eps=1e-8)
"""

PLAIN = "print('no torch')"

WITH_THE_WORKER = """
import launcher_worker as worker
worker.knobs().precision
worker.resume_from()
if worker.knobs().attempt == 1:
    raise ValueError("Attempting to unscale FP16 gradients.")
worker.done(1)
"""

TURING = ("--profile", "titan_rtx", "--rehearse")


def report(client, *words):
    return json.loads(client.ok("explain", "--json", *words))


def test_what_a_script_used_stands_beside_what_the_card_wants(client):
    """Two columns, a verdict with the rule that is broken, and the whole command that mends it."""
    client.script(REPORTS)
    client.run(*TURING, "-e", "A=b c", "--", "python", "train.py", "--lr", "1")
    (run,) = client.runs.glob("[0-9]*")
    assert "cannot unscale" in known_precision(LocalCopy(run.name, client.runs)).unsound
    said = client.ok("explain", "last")
    lines = (re.split("  +", row.strip()) for row in said.splitlines())
    rows = {name: cells for name, *cells in lines}
    assert rows["autocast"] == ["none", "fp16", "differs"]
    assert rows["trained weights"] == ["fp16", "fp32", "differs"]
    assert rows["scaler"] == ["on", "on"]
    assert "soundly on this card: a scaler cannot unscale float16 gradients" in said
    command = "launch --profile titan_rtx --rehearse -e 'A=b c' --adapt -- python train.py --lr 1"
    assert f"next   {command}" in said
    values = report(client, "last")
    assert (values["verdict"], values["next"], values["rung"]) == ("unsound", command, None)
    assert [row["name"] for row in values["rows"] if row["differs"]] == [
        "autocast",
        "trained weights",
        "gradients",
    ]
    assert (values["attempts"][0]["source"], values["attempts"][0]["ran"]["eps"]) == ("seen", 1e-8)


def test_a_live_run_is_explained(client):
    """By what it has reported so far; before that it says that nothing was seen yet."""
    go = client.home / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.1)"
    client.script(f"{wait}\n{REPORTS}\ntime.sleep(600)")
    run = client.detached(*TURING, "--", "python", "train.py")
    until(lambda: client.summary(run)["state"] == "running", "the start")
    assert "so far" in report(client, run)["sentence"]
    go.touch()
    until(lambda: report(client, run)["verdict"] == "unsound", "what was seen")
    assert client.summary(run)["state"] == "running"
    client.ok("stop", "--now", run)


def test_a_script_that_takes_the_plan_s_precision_used_that_of_each_attempt(client):
    """The first rung failed, so the second one ran: the attempts say so."""
    client.script(WITH_THE_WORKER)
    client.ok(*TURING, "--set", "method=lora", "--", "python", "train.py")
    values = report(client, "last")
    assert (values["verdict"], values["rung"], values["attempt"]) == ("lower-rung", 2, 2)
    assert values["sentence"].endswith("attempt 1 failed on rung 1 (fp16-unscale)")
    assert [(one["rung"], one["source"]) for one in values["attempts"]] == [(1, "plan"), (2, "plan")]
    assert values["next"] is None
    said = client.ok("explain", "last")
    assert "attempt 1  rung 1: fp16 autocast + scaler" in said
    assert "resuming, fp16-unscale" in said


def test_what_was_only_taken_is_not_said_to_have_run(client):
    """As with our own jobs, which have the hook off. The table keeps its titles in a narrow terminal."""
    client.script("import launcher_worker as worker\nworker.knobs().precision\nworker.done(1)\n")
    client.ok(*TURING, "--set", "inject=false", "--", "python", "train.py")
    said = client.ok("explain", "last")
    assert "this run used" not in said
    assert "  the script takes the card's best precision\n" in said
    assert "did not observe the precision: it is off for this job" in said
    assert re.search(r"^ +from the plan  the card wants$", said, re.MULTILINE)
    assert re.search(r"device +cpu, for cuda  cuda$", said, re.MULTILINE)
    assert re.search(r"products +not seen  ", said)
    assert report(client, "last")["attempts"][0]["source"] == "plan"
    narrow = without_style(in_terminal(client, "explain", "last", columns=40)).splitlines()
    assert max(map(len, narrow)) <= 40
    assert any(re.fullmatch(r" +from the +the card", line) for line in narrow)
    assert any(re.fullmatch(r"  trained weights +fp32 +fp32", line) for line in narrow)


@pytest.mark.parametrize(
    ("words", "why"), [pytest.param((), "or the run is from a version that did not look", marks=pytest.mark.long), (("--set", "inject=false"), "the start-up hook was off")]
)  # fmt: skip
def test_a_run_that_shows_nothing_of_its_precision_says_why(client, words, why):
    """For example an old one."""
    client.script(PLAIN)
    client.ok(*words, "--profile", "cpu", "--", "python", "train.py")
    assert why in client.ok("explain", "last")
    values = report(client, "last")
    assert (values["verdict"], values["rows"], values["attempts"][0]["ran"]) == (None, [], None)


def test_a_run_has_its_own_card(client):
    """Options of a plan mean nothing for it, and are refused."""
    done = client.run("explain", "last", "--profile", "cpu")
    assert done.returncode == 2
    assert "launch explain RUN" in done.stderr


@pytest.mark.parametrize(("dtype", "is_offered"), [("float32", False), ("float16", True)])
def test_adapt_is_offered_where_a_precision_can_help(client, dtype, is_offered):
    """A loss that diverges in float32 does so in every precision."""
    ends = "for step in range(1, 9): print('step', step, 'loss nan', flush=True)\ntime.sleep(60)\n"
    client.script(REPORTS.replace("float16", dtype) + ends)
    done = client.run("--", "python", "train.py")
    assert "nan-divergence" in done.stderr
    assert ("  adapt " in done.stderr) == is_offered
    assert bool(report(client, "last")["next"]) == is_offered
    assert "--adapt if not" not in done.stderr
