"""A run goes on exactly once: an agent that another one has replaced kills its training and seals nothing more."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, missing, until
from testbed.toy import recorded_run

from launcher.agent.liveness import predecessor
from launcher.agent.liveness.run_state import state_of
from launcher.agent.record.files import write_durably, write_over
from launcher.agent.record.rundir import Run
from launcher.agent.serving import contact
from launcher.agent.serving.requests import RequestError
from launcher.agent.serving.session import ClientSession
from launcher.agent.store import checkpoints
from launcher.agent.system import mounts, process
from launcher.agent.verbs import starting

AWARE = 'tell("consumed", knobs=["resume"])\nsignal.signal(signal.SIGTERM, lambda *_: write(sigterm=True))\n'
STEPS = """
first = int((newest() or "step-0").split("-")[1]) + 1
for step in range(first, 10):
    time.sleep({pause})
    write(step=step, attempt=values["attempt"])
    save(step)
tell("done", 9)
"""


def steps(toy):
    """The steps that were trained, by the training's own ledger."""
    return [line["step"] for line in toy.ledger() if "step" in line]


# the fence


def test_an_agent_whose_run_has_gone_on_kills_its_training_and_says_so_in_its_own_folder(toy):
    """By SIGKILL, for SIGTERM would make it save; it leaves with 0, so that nothing starts it again."""
    toy.script(AWARE + STEPS.format(pause=0.1))
    keeper = toy.start()
    until(lambda: len(steps(toy)) >= 2, "two steps")
    pid = next(event["values"]["pid"] for event in toy.events("state") if "pid" in event["values"])
    later = toy.run.new_folder(sealed=checkpoints.sealed_now(toy.run))
    began = time.monotonic()
    assert keeper.wait(30) == 0
    assert time.monotonic() - began < 5
    assert is_gone(pid)
    told = toy.record(2)
    assert (told["state"], told["reason"]) == ("interrupted", "superseded")
    assert told["evidence"] == {"goes_on_in": "0003"}
    assert not [line for line in toy.ledger() if "sigterm" in line]
    assert toy.events("state")[-1]["values"]["reason"] == "superseded"
    assert sorted(os.listdir(later.path)) == ["lock", "sealed.json"]  # it wrote nothing there
    later.release()


def test_a_training_that_ends_by_itself_after_its_run_went_on_changes_nothing(toy):
    """Neither a failure that would move checkpoints, nor a success, nor the secrets' end counts any more."""
    toy.script(
        AWARE + "save(2)\nsave(4)\n"
        "os.mkdir(os.path.join(os.path.dirname(os.environ['LAUNCH_ATTEMPT']), '0003'))\n"
        "trip(5, 3)\nsys.exit(1)\n"
    )
    assert toy.start().wait(30) == 0
    assert toy.record(2)["reason"] == "superseded"
    assert "remedy" not in toy.record(2)
    assert sorted(os.listdir(toy.run.checkpoints)) == ["step-2", "step-4"]
    assert toy.run.numbers() == [1, 2, 3]


def test_of_many_that_make_the_next_folder_one_succeeds(tmp_path):
    """The others are told; the folder is whole when it appears: locked, and with what was sealed before it."""
    run = recorded_run(tmp_path, "0101-x-aaaa")
    made, refused, seen = [], [], []

    def make(number):
        try:
            made.append(Run(run.path).new_folder(after=run.folder(1), sealed=[str(number)]))
        except FileExistsError:
            refused.append(number)

    def watch():
        while len(made) + len(refused) < 8:
            if os.path.exists(run.folder(2).path):
                seen.append((run.folder(2).is_locked(), run.folder(2).read_sealed() is not None))

    threads = [threading.Thread(target=watch), *(threading.Thread(target=make, args=[n]) for n in range(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused), run.numbers()) == (1, 7, [1, 2])
    assert set(seen) <= {(True, True)}
    assert [name for name in os.listdir(run.record) if name.startswith(".")] == []
    made[0].release()


# late seals


def checkpoint(run, step, sealer):
    """A whole checkpoint as the worker of an attempt folder seals it."""
    folder = Path(run.checkpoints) / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "rung").write_text("0")
    digest = checkpoints._digest(b"0")
    told = {"run": run.id, "folder": sealer, "step": step, "files": {"rung": {"size": 1, "sha256": digest}}}
    (folder / "manifest.json").write_text(json.dumps(told))


def test_what_an_attempt_sealed_after_a_later_one_began_is_never_trained_from(toy):
    """Nor removed: it is set aside with the reason. What it sealed before counts."""
    run = toy.run
    checkpoint(run, 2, sealer=2)
    for began in (None, checkpoints.sealed_now(run)):
        folder = run.new_folder(sealed=began)
        write_durably(folder.attempt, json.dumps({"kind": "attempt"}))
        folder.write_state("running", began=True, consumed=["resume"], attempt=1)
        folder.release()
    checkpoint(run, 5, sealer=2)
    checkpoint(run, 3, sealer=3)
    assert checkpoints.late(run) == {"step-5": "attempt folder 0002 sealed it after 0003 had begun"}
    toy.plan(restart=True)
    toy.script('write(from_=newest())\ntell("done", 9)\n')
    assert toy.ended()["state"] == "succeeded"
    assert toy.ledger()[-1] == {"from_": "step-3"}
    (aside,) = Path(run.checkpoints).glob(".rejected-*/step-5/manifest.json")
    assert aside.is_file()
    (damaged,) = (
        one["values"]["checkpoints"]["damaged"]
        for one in toy.events("evidence")
        if "checkpoints" in one["values"]
    )
    assert damaged == {"step-5": "attempt folder 0002 sealed it after 0003 had begun"}


def test_another_runs_checkpoint_and_one_without_a_sealer_count_as_they_are(toy):
    """A child's inherited checkpoint has its parent's number; older manifests have none."""
    run = toy.run
    toy.run.new_folder(sealed=[]).release()
    for step, told in ((1, {"run": "0101-parent-aaaa", "folder": 1}), (2, {"run": run.id})):
        checkpoint(run, step, sealer=1)
        path = Path(run.checkpoints) / f"step-{step}" / "manifest.json"
        path.write_text(
            json.dumps({**{k: v for k, v in json.loads(path.read_text()).items() if k != "folder"}, **told})
        )
    assert checkpoints.late(run) == {}


# proof of a death


@pytest.mark.parametrize(
    ("told", "kind", "decides"),
    [
        ({}, "ext4", True),
        ({"boot_id": "an earlier one"}, "ext4", True),
        ({"boot_id": "an earlier one"}, "nfs4", False),
        ({"boot_id": "an earlier one"}, "fuse", False),
        ({"boot_id": "an earlier one", "place_id": "another machine"}, "ext4", False),
        ({"device": 1}, "ext4", False),
        ({"device": None}, "nfs4", True),
        ({"place_id": "another machine"}, "nfs4", True),  # of this boot: a container's agent, given another id
        ({"boot_id": "an earlier one", "place_id": "another machine", "locks": "shared"}, "nfs4", True),
    ],
)  # fmt: skip
def test_a_lock_decides_where_it_counts(tmp_path, monkeypatch, told, kind, decides):
    """By this boot and this mount, or after a boot of the one machine that has the disk."""
    monkeypatch.setattr(mounts, "mount_of", lambda _path: ("", kind))
    run = recorded_run(tmp_path, "0101-x-aaaa", **{"kind": "attempt", **told})
    if "device" not in told:
        record = json.loads(Path(run.folder(1).attempt).read_text())
        write_durably(run.folder(1).attempt, json.dumps({**record, "device": run.folder(1).device()}))
    assert predecessor.lock_decides(run, run.folder(1)) is decides


@pytest.mark.parametrize(
    ("kind", "lasts_s"),
    [("ext4", 10), ("xfs", 10), ("nfs4", 70), ("fuse", 70), ("unheard-of", 70), (None, 70)],
)
def test_silence_proves_a_death_after_two_heartbeats_and_what_a_cache_may_hide(
    tmp_path, monkeypatch, kind, lasts_s
):
    """By this process's own clock, whatever the files' times say."""
    monkeypatch.setattr(mounts, "mount_of", lambda _path: ("", kind))
    clock = [1000.0]
    monkeypatch.setattr(predecessor.time, "monotonic", lambda: clock[0])
    run = recorded_run(tmp_path, "0101-x-aaaa", kind="attempt")
    folder = run.folder(1)
    write_over(folder.heartbeat, '{"monotonic_s": 5.0}')
    os.utime(folder.heartbeat, (1, 1))
    silence = predecessor.SilenceWatch(run, folder)
    assert (silence.lasts_s, silence.left_s, silence.look()) == (lasts_s, lasts_s, None)
    clock[0] += lasts_s - 0.1
    assert silence.look() is None
    clock[0] += 0.1
    assert silence.look() is True
    write_over(folder.heartbeat, '{"monotonic_s": 6.0}')
    assert silence.look() is False


def test_a_folder_that_appears_ends_the_watch(tmp_path):
    """Another one was faster."""
    run = recorded_run(tmp_path, "0101-x-aaaa", kind="attempt")
    silence = predecessor.SilenceWatch(run, run.folder(1))
    run.new_folder().release()
    assert silence.look() is False


def test_a_client_waits_for_the_silence_before_a_folder_is_made(tmp_path, monkeypatch):
    """Its agent says how long; a sign of life ends the wait, and nothing is made."""
    run = recorded_run(tmp_path, "0101-x-aaaa", kind="attempt", device=1)
    session = ClientSession(str(tmp_path), None)
    monkeypatch.setattr(starting.worker_folder, "unpack", lambda _agent: None)
    clock = [1000.0]
    monkeypatch.setattr(predecessor.time, "monotonic", lambda: clock[0])
    lasts_s = predecessor.SilenceWatch(run, run.folder(1)).lasts_s
    asked = starting.resume(session, starting.Resume(run.id), b"").values
    assert asked == {"state": "interrupted", "silence_left_s": lasts_s}
    clock[0] += lasts_s - 1
    write_over(run.folder(1).heartbeat, '{"monotonic_s": 6.0}')
    with pytest.raises(RequestError) as refused:
        starting.resume(session, starting.Resume(run.id), b"")
    assert (refused.value.code, run.numbers()) == ("alive", [1])
    assert starting.resume(session, starting.Resume(run.id), b"").values["silence_left_s"] == lasts_s
    clock[0] += lasts_s
    starting.resume(session, starting.Resume(run.id), b"")  # its code never came
    assert (run.numbers(), run.last().read_state()["reason"]) == ([1, 2], "never-started")


def test_a_stop_of_a_run_that_may_live_elsewhere_leaves_its_wish_and_makes_no_folder(tmp_path):
    """Its agent reads it, if there is one; for everybody else the run has ended by it."""
    run = recorded_run(tmp_path, "0101-x-aaaa", kind="attempt", device=1)
    assert contact.stop(run, "stop") is None
    assert (run.read_wish(), run.numbers()) == ("stop", [1])
    assert state_of(run)["state"] == "stopped"


# two machines with one home, whose locks do not reach from one to the other


@pytest.fixture
def elsewhere(toy, tmp_path_factory):
    """The same home as another machine mounts it, by FUSE: locks on one side are not seen on the other."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("the kernel has no FUSE, or not for this user")
    if shutil.which("bindfs") is None:
        missing("bindfs is not installed")
    place = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(["bindfs", str(toy.home), str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def second_agent(toy, elsewhere):
    """Start an agent for the same run by hand, on the other machine."""
    path = elsewhere / Path(toy.run.path).relative_to(toy.home)
    variables = {**os.environ, "LAUNCH_HOST_ID": "0123456789abcdef", "HOME": str(elsewhere), "TMPDIR": "/tmp"}
    keeper = subprocess.Popen(
        [sys.executable, "-I", str(toy.agent), "keep", str(path)],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    toy.keepers.append(keeper)
    return keeper


@pytest.mark.testbed
def test_an_agent_started_for_a_run_that_lives_on_another_machine_makes_nothing(toy, elsewhere):
    """It sees the other's heartbeat change, says so, and leaves; the run goes on as if nothing had happened."""
    toy.script(AWARE + STEPS.format(pause=1.5))
    first = toy.start()
    until(lambda: steps(toy), "a step")
    second = second_agent(toy, elsewhere)
    _, said = second.communicate(timeout=180)
    assert "waiting for 70 s of silence" in said
    assert "the run is alive elsewhere: nothing to do" in said
    assert (second.returncode, toy.run.numbers()) == (0, [1, 2])
    assert toy.wait(first)["state"] == "succeeded"
    assert steps(toy) == [*range(1, 10)]


@pytest.mark.testbed
@pytest.mark.long
def test_a_frozen_machine_that_comes_back_finds_its_run_gone_on_and_no_step_counts_twice(toy, elsewhere):
    """The second agent waits out the silence and takes over; the first is back and ends within 5 s."""
    toy.script(AWARE + STEPS.format(pause=0.7))
    first = toy.start()
    until(lambda: len(steps(toy)) >= 3, "three steps")
    frozen = [found.pid for found in (process.find(first.pid), *process.descendants(first.pid)) if found]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    second = second_agent(toy, elsewhere)
    until(lambda: toy.run.numbers() == [1, 2, 3], "the second agent's folder", timeout=120)
    until(lambda: toy.record(3).get("state") == "running", "its training")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    began = time.monotonic()
    assert first.wait(30) == 0
    assert time.monotonic() - began < 5
    assert toy.record(2)["reason"] == "superseded"
    second.communicate(timeout=180)
    assert second.returncode == 0
    assert toy.state()["state"] == "succeeded"
    taken = [line["step"] for line in toy.ledger() if line.get("attempt") == 2 and "step" in line]
    assert taken == [*range(taken[0], 10)]
    manifests = [
        json.loads(path.read_text()) for path in Path(toy.run.checkpoints).glob("step-*/manifest.json")
    ]
    assert {one["folder"] for one in manifests if one["step"] >= taken[0]} == {3}
    assert checkpoints.late(toy.run) == {}


def test_a_second_agent_on_the_same_machine_leaves_at_once(toy):
    """The lock of the first one's folder decides."""
    toy.script(AWARE + STEPS.format(pause=0.2))
    first = toy.start()
    until(lambda: steps(toy), "a step")
    said = subprocess.run(
        [sys.executable, "-I", str(toy.agent), "supervise", toy.run.path],
        capture_output=True, text=True, timeout=30, check=True,
    ).stderr  # fmt: skip
    assert "another agent writes" in said
    assert toy.run.numbers() == [1, 2]
    assert toy.wait(first)["state"] == "succeeded"
    assert steps(toy) == [*range(1, 10)]


def test_an_agent_that_a_scheduler_has_started_trains_once_the_last_one_has_left(toy):
    """As on a node that Slurm has lost and that lives on: nobody sees its lock, and its training has ended before the next begins."""
    toy.script(
        AWARE
        + "step = int((newest() or 'step-0').split('-')[1])\n"
        + f"while not os.path.exists({str(toy.home / 'enough')!r}):\n"
        + "    step += 1\n    write(step=step, attempt=values['attempt'])\n    time.sleep(0.05)\n"
        + "tell('done', step)\n"
    )
    prepared = toy.run.prepared()
    write_durably(
        toy.run.prepared_record,
        json.dumps({**prepared, "runtime": {**prepared["runtime"], "kind": "slurm"}}),
    )
    first = toy.start()
    until(lambda: len(steps(toy)) >= 5, "steps")
    agent = toy.run.folder(2).read_attempt()["agent"]["pid"]
    os.kill(agent, signal.SIGSTOP)  # as one whose disk shows it late that the run has gone on
    began_s = time.monotonic()
    second = subprocess.Popen([sys.executable, "-I", str(toy.agent), "supervise", toy.run.path])
    try:
        until(lambda: toy.run.folder(3).read_attempt(), "the second's folder")
        before = len(steps(toy))
        would_train_s = time.monotonic() + 2 * (time.monotonic() - began_s)  # by the load of this machine
        until(
            lambda: len(steps(toy)) >= before + 15 and time.monotonic() > would_train_s,
            "steps of the first, whose agent is stopped",
        )
        os.kill(agent, signal.SIGCONT)
        until(
            lambda: len([1 for line in toy.ledger() if line.get("attempt") == 2]) >= 5, "the second's steps"
        )
        (toy.home / "enough").touch()
        assert (first.wait(30), second.wait(30)) == (0, 0)
    finally:
        os.kill(agent, signal.SIGCONT) if process.find(agent) else None
        second.kill()
        second.wait()
    assert toy.record(2)["reason"] == "superseded"
    order = [line["attempt"] for line in toy.ledger() if "step" in line]
    assert order == sorted(order)


def test_whether_an_agent_has_left_that_nobody_sees(tmp_path):
    """Its word, its silence by the disk's own times, or the end of its process on this machine."""
    run = recorded_run(tmp_path, "0101-toy-aaaa")
    last = run.new_folder()
    last.release()
    write_durably(last.attempt, json.dumps({"boot_id": "another", "agent": {"pid": 1, "start": "1"}}))
    last.write_state("running")
    write_over(last.heartbeat, "{}")
    later = run.new_folder()
    write_durably(later.attempt, "{}")
    recorded_move = predecessor.PredecessorExit(last, later)
    assert not recorded_move.is_over()
    old = time.time() - 3600
    os.utime(last.heartbeat, (old, old))
    assert predecessor.PredecessorExit(last, later).is_over()
    write_over(last.heartbeat, "{}")
    assert not predecessor.PredecessorExit(last, later).is_over()
    dead = {"boot_id": process.boot_id(), "agent": {"pid": 1 << 22, "start": "1"}}
    write_durably(last.attempt, json.dumps(dead))
    assert predecessor.PredecessorExit(last, later).is_over()
    last.write_state("interrupted")
    assert recorded_move.is_over()
    later.release()
