"""Cards that others hold, through the command line: runs that hold one, strangers that do, and where a launch goes."""

import json
import os
import signal

import pytest
from testbed.cards import uuid_of
from testbed.client import is_gone, until

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs")

HOLDS = """
import sys, time
sys.path.insert(0, {folder!r})
import context
print("holds", context.open_context(memory_mib=900), flush=True)
time.sleep({seconds})
"""
WAITS = """
import os, sys, time
sys.path.insert(0, {folder!r})
import context
open({ready!r}, "w").close()
while os.path.exists({ready!r}):
    time.sleep(0.05)
context.open_context()
"""


RESUMES = """
import os, sys, time
import launcher_worker as worker
sys.path.insert(0, {folder!r})
import context
worker.resume_from()
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
once = os.path.join(os.environ["LAUNCH_ATTEMPT"], "..", "once")
if not os.path.exists(once):
    open(once, "w").close()
    open({ready!r}, "w").close()
    while os.path.exists({ready!r}):
        time.sleep(0.05)
context.open_context()
worker.done(1)
"""
TWICE = """
import subprocess, sys
import launcher_worker as worker
worker.resume_from()
sys.path.insert(0, {folder!r})
import context
context.open_context()
print("the second", flush=True)
code = "import sys; sys.path.insert(0, {folder!r}); import context; context.open_context()"
subprocess.run([sys.executable, "-c", code], check=True)
"""
EXCLUSIVE = {"compute_mode": "Exclusive_Process"}


@pytest.fixture
def holding(client, cards):
    """A project whose training holds its card for a while."""
    client.script(HOLDS.format(folder=str(cards.folder), seconds=1000))
    return client


def probed(client, *words):
    """What a probe tells of the cards' holders, by pid."""
    told = json.loads(client.ok("probe", "--json", *words))
    return {holder["pid"]: holder for gpu in told["gpus"] for holder in gpu["holders"]}


def test_a_run_that_holds_a_card_is_ours_and_what_it_leaves_is_too(holding, cards):
    """By the token in its environment; the same program without it is a stranger's."""
    cards.put("l40s")
    run = holding.detached("--profile", "l40s", "--", "python", "train.py")
    (held,) = until(lambda: list(probed(holding).values()), "the context")
    assert (held["ownership"], held["run"], held["memory_mib"]) == ("ours-live", run, 900)
    assert held["command"].endswith("train.py")
    assert f"holds GPU 0: run {run}   launch attach" in holding.ok("probe")
    assert "1 x NVIDIA L40S, 1 held" in holding.ok("hosts")
    holding.ok("stop", run, "--now")
    until(lambda: not probed(holding), "the card to be free")
    assert "driver 580.65.06: free" in holding.ok("probe")
    token = (holding.home / ".launch" / "runs" / run / "control" / "token").read_text().strip()
    left, stranger = cards.leave(0, LAUNCH_TOKEN=token), cards.hold(0, LAUNCH_TOKEN="another")
    found = probed(holding)
    assert (found[left]["ownership"], found[left]["run"]) == ("ours-leftover", run)
    assert (found[stranger.pid]["ownership"], found[stranger.pid]["run"]) == ("stranger", None)
    said = holding.ok("probe")
    assert f"holds GPU 0: left over from run {run}" in said
    assert f"yours, of no run; to end it   kill {stranger.pid}" in said


@pytest.mark.long
def test_a_free_card_goes_before_a_held_one(holding, cards):
    """Whatever its index; where all are held one is shared, and that is said."""
    cards.put("l40s", "l40s")
    first = cards.hold(0)
    done = holding.run("--detach", "--json", "--profile", "l40s", "--", "python", "train.py")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["code"] for line in lines if line["kind"] == "finding"} <= {"not-adapted"}
    run = lines[-1]["run"]
    until(lambda: len(probed(holding)) == 2, "the context")
    assert f"holds {uuid_of(1)}" in holding.ok("logs", run)
    said = holding.planned("--profile", "l40s", "--", "true")
    assert f"note: pid {first.pid} (root, " in said
    assert "holds GPU 0; left alone" in said
    holding.ok("stop", run, "--now")


def test_an_exclusive_card_that_a_stranger_holds_is_refused_with_who_and_what_to_type(client, lab, cards):
    """On an SSH host, before anything is sent; a stopped holder is told for what it is, too."""
    cards.put(("titan_rtx", {"compute_mode": "Exclusive_Process"}))
    held = cards.hold(0, 1200)
    os.kill(held.pid, signal.SIGSTOP)
    with cards.on(lab.home):
        runs = lab.ssh("sh", "-c", "ls .launch/runs 2>/dev/null || true")
        done = client.run("--host", "A", "--profile", "titan_rtx", "--", "true")
        assert done.returncode == 3
        assert (
            "refused before anything was sent: A: its TITAN RTX 24 GB accepts one process at a time"
            in done.stderr
        )
        assert f"pid {held.pid} (root, /usr/bin/python3 -B " in done.stderr
        assert "holds GPU 0: ask root to end it" in done.stderr
        assert "launch probe --host A " in done.stderr
        assert lab.ssh("sh", "-c", "ls .launch/runs 2>/dev/null || true") == runs
        said = client.ok("probe", "--host", "A")
        assert "MiB, 1,201 used, driver 580.65.06, exclusive-process: held" in said
        assert "1.3 GB, for " in said
        assert "stopped: it still holds the card" in said
        dry = json.loads(client.planned("--json", "--host", "A", "--profile", "titan_rtx", "--", "true"))
        assert [(one["level"], one["code"]) for one in dry["findings"]] == [("refuse", "gpu-busy-exclusive")]
        held.kill()
        held.wait()
        client.ok("--host", "A", "--profile", "titan_rtx", "--", "true")
    lab.ssh("rm", "-rf", ".launch/runs")


@pytest.mark.long
def test_a_card_that_is_taken_after_the_gate_ends_the_run_in_its_class(client, cards, tmp_path):
    """CUDA's own words in the log, read by the agent; nothing is tried again on the same card."""
    ready = tmp_path / "ready"
    cards.put(("titan_rtx", {"compute_mode": "Exclusive_Process"}))
    client.script(WAITS.format(folder=str(cards.folder), ready=str(ready)))
    run = client.detached("--profile", "titan_rtx", "--", "python", "train.py")
    until(ready.exists, "the training")
    cards.hold(0)
    ready.unlink()
    until(lambda: client.summary(run)["state"] == "failed", "the end")
    assert client.summary(run)["reason"] == "gpu-busy-exclusive"
    assert "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy" in client.ok("logs", run)


@pytest.mark.long
def test_a_sweep_ends_what_is_ours_on_a_card_and_says_whom_to_ask_of_a_stranger(holding, cards):
    """In a table and for programs; the stranger is alive afterwards, and is shown again."""
    cards.put("l40s", "l40s")
    run = holding.detached("--profile", "l40s", "--", "python", "train.py")
    until(lambda: probed(holding), "the context")
    token = (holding.home / ".launch" / "runs" / run / "control" / "token").read_text().strip()
    holding.ok("stop", run, "--now")
    left, stranger = cards.leave(0, LAUNCH_TOKEN=token), cards.hold(1)
    said = holding.ok("sweep")
    assert is_gone(left)
    assert f"kill {stranger.pid}" in said
    assert "holds GPU 1: yours, of no run" in said
    (item,) = json.loads(holding.ok("sweep", "--json"))["items"]
    assert (item["kind"], item["did"]) == ("stranger", "left")
    assert item["name"].startswith(f"pid {stranger.pid} (root, ")
    assert stranger.poll() is None
    assert holding.ok("sweep").startswith("local: nothing is left over\n")


@pytest.fixture
def take_card(client, cards, tmp_path):
    """Launch a script that may be begun again; a stranger takes its card after the gate. Return the run and the stranger."""
    ready = tmp_path / "ready"
    client.script(RESUMES.format(folder=str(cards.folder), ready=str(ready)))

    def launch():
        run = client.detached("--profile", "titan_rtx", "--", "python", "train.py")
        until(ready.exists, "the training")
        stranger = cards.hold(0)
        ready.unlink()
        return run, stranger

    return launch


@pytest.mark.long
def test_a_run_whose_card_was_taken_moves_to_another(client, cards, take_card):
    """The next attempt sees the other card, and nobody has signalled whoever took the first."""
    cards.put(*[("titan_rtx", EXCLUSIVE)] * 2)
    run, stranger = take_card()
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    said = client.ok("logs", run)
    assert [line.split()[1] for line in said.splitlines() if "sees" in line] == [uuid_of(0), uuid_of(1)]
    assert stranger.poll() is None


@pytest.mark.long
def test_a_run_whose_only_card_was_taken_waits_for_it_and_says_who_has_it(client, cards, take_card):
    """It can be stopped meanwhile, and goes on once the stranger has left."""
    cards.put(("titan_rtx", EXCLUSIVE))
    for is_stopped in (True, False):
        run, stranger = take_card()
        until(lambda run=run: client.summary(run)["reason"] == "card", "it to wait")
        row = client.summary(run)
        assert row["state"] == "resuming"
        assert row["evidence"]["card"] == f"GPU 0 held by pid {stranger.pid} (root)"
        if is_stopped:
            assert "stopped" in client.ok("stop", run)
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()
        if not is_stopped:
            until(lambda run=run: client.summary(run)["state"] == "succeeded", "the end")


@pytest.mark.long
def test_a_script_that_opens_its_exclusive_card_twice_is_told_so(client, cards):
    """A parent and its child: nobody else holds the card, so it is tried once more and no more."""
    cards.put(("titan_rtx", EXCLUSIVE))
    client.script(TWICE.format(folder=str(cards.folder)))
    done = client.run("--profile", "titan_rtx", "--", "python", "train.py")
    assert done.returncode == 1
    assert "gpu-busy-exclusive" in done.stderr
    assert "no other process used the card" in done.stderr
    assert client.ok("logs", "last").count("the second") == 2


def test_a_launch_can_wait_for_a_stranger_to_leave_its_card(client, cards):
    """It is shown who that is; without --wait it is refused, and told of it."""
    cards.put(("titan_rtx", EXCLUSIVE))
    stranger = cards.hold(0)
    words = ("--profile", "titan_rtx", "--", "true")
    done = client.run(*words)
    assert done.returncode == 3
    assert "--wait 30m" in done.stderr
    assert client.run("--wait", "1s", *words).returncode == 3
    waits = client.start("--wait", "5m", *words)
    while f"wait: pid {stranger.pid} (root" not in (line := waits.stderr.readline()):
        assert line
    stranger.kill()
    stranger.wait()
    _, err = waits.communicate(timeout=180)
    assert waits.returncode == 0, err
    assert "no longer pid" in err


def test_hosts_shows_every_host_s_cards_free_or_held(client, lab, cards):
    """Those of this machine and of an SSH host, at once."""
    cards.put("l40s", "l40s", "t4")
    cards.hold(1)
    with cards.on(lab.home):
        said = client.ok("hosts").splitlines()
    assert [line.split()[0] for line in said] == ["HOST", "local", "A"]
    assert all("2 x NVIDIA L40S, 1 x Tesla T4, 1 held" in line for line in said[1:])
