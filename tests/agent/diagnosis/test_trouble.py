"""What keeps a live run from going on is said: a full disk, a paused container, an agent that does not move."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.agent.liveness.docker import docker_liveness
from launcher.agent.liveness.run_state import state_of
from launcher.agent.liveness.trouble import trouble_of
from launcher.agent.record.files import write_durably, write_over
from launcher.agent.record.rundir import HEARTBEAT_S, Run
from launcher.agent.serving import contact
from launcher.agent.system import process
from launcher.agent.verbs.summary import summary
from launcher.values.record import RunState, Trouble


def held(path: Path, kind: str = "native"):
    """A run whose folder this process holds, as its agent does, with a heartbeat of now."""
    run = Run(str(path / "runs" / "0101-toy-aaaa"))
    run.make()
    folder = run.new_folder()
    runtime = {"kind": kind, "engine": {"socket": "/nowhere"}}
    write_durably(folder.attempt, json.dumps({"place_id": process.host_id(), "runtime": runtime}))
    folder.write_state("running", attempt=1)
    beat(folder, 0.0)
    return run, folder


def beat(folder, age_s: float) -> None:
    """Write a heartbeat of so long ago."""
    Path(folder.heartbeat).write_text(json.dumps({"monotonic_s": time.monotonic() - age_s}))
    then = time.time() - age_s
    os.utime(folder.heartbeat, (then, then))


def what(run):
    trouble = trouble_of(run, state_of(run))
    return trouble and trouble["what"]


def test_an_agent_that_does_not_move_is_frozen(tmp_path):
    """Not before four heartbeats, and not for a clock that only jumped."""
    run, folder = held(tmp_path)
    assert what(run) is None
    beat(folder, 25.0)
    assert what(run) == "its agent is frozen"
    assert 25 <= summary(run, state_of(run))["trouble"]["since_s"] < 60
    os.utime(folder.heartbeat)
    assert what(run) is None
    folder.write_state("succeeded")
    beat(folder, 25.0)
    assert what(run) is None
    folder.release()


@pytest.mark.parametrize(
    ("doing", "words"),
    [
        ("idle", "hung or waiting (its stacks are in the log): no output, no CPU time, no bytes for 912 s"),
        ("busy", "silent, though its processes work: no output for 912 s"),
        ("unseen", "silent: no output for 912 s"),
        ("\x1b[2J", None),
        (None, None),
    ],
)
def test_a_training_that_has_said_nothing_for_long_is_named(tmp_path, doing, words):
    """In the words of its agent's heartbeat, of which a job may have written any."""
    run, folder = held(tmp_path)
    told = {"monotonic_s": time.monotonic(), "silent_s": 912.4, "doing": doing}
    Path(folder.heartbeat).write_text(json.dumps(told))
    found = trouble_of(run, state_of(run))
    assert (Trouble.model_validate(found).words if found else None) == words
    folder.release()


def test_a_paused_container_is_named(tmp_path, monkeypatch):
    """By its engine; for `ps` at once, while its agent has just written."""
    run, folder = held(tmp_path, "docker")
    monkeypatch.setattr(docker_liveness.PROBE, "containers_of", lambda *_: {run.id: {"status": "paused"}})
    assert what(run) is None
    assert summary(run, state_of(run))["trouble"] == {"kind": "paused", "what": "its container is paused"}
    beat(folder, 25.0)
    answers = {"paused": "its container is paused", "running": "its agent is frozen"}
    for status, words in answers.items():
        found = {run.id: {"status": status}}
        monkeypatch.setattr(docker_liveness.PROBE, "containers_of", lambda *_, found=found: found)
        assert what(run) == words
    folder.release()


@pytest.mark.testbed
@pytest.mark.parametrize("lacks", ["blocks", "inodes"])
def test_a_full_disk_is_named(small_disk, lacks):
    """The run's own: its heartbeat may be fresh, or empty."""
    run, folder = held(small_disk)
    assert what(run) is None
    if lacks == "blocks":
        fill(small_disk / "filler")
    else:
        status = os.statvfs(small_disk)
        used = status.f_files - status.f_ffree
        subprocess.run(["mount", "-o", f"remount,nr_inodes={used}", small_disk], check=True)
    assert what(run) == "disk full, the run waits for room"
    Path(folder.heartbeat).write_text("")
    assert trouble_of(run, state_of(run))["kind"] == "disk-full"
    folder.release()


def fill(path):
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


@pytest.mark.testbed
def test_a_full_disk_takes_heartbeats_and_wishes_and_ends_a_run(small_disk):
    """They are written in place; a run that stops by its user's wish has ended without a record of that."""
    run, folder = held(small_disk)
    run.write_wish("run")
    write_over(folder.heartbeat, json.dumps({"monotonic_s": 1.0}))
    fill(small_disk / "filler")
    write_over(folder.heartbeat, json.dumps({"monotonic_s": 2.5}))
    assert folder.read_heartbeat() == {"monotonic_s": 2.5}
    with pytest.raises(OSError, match="No space left"):
        write_durably(run.plan, "{}")
    for wish in ("stop", "cancel", "stop"):
        run.write_wish(wish)
        assert run.read_wish() == wish
    assert state_of(run)["state"] == "running"
    folder.release()
    assert (state_of(run)["state"], state_of(run)["reason"]) == ("stopped", "by-user")


def test_an_agent_says_why_the_disk_refuses(tmp_path):
    """A quota shows in no figure of the disk: its heartbeat, which is written in place, names it."""
    run, folder = held(tmp_path)
    write_over(folder.heartbeat, json.dumps({"monotonic_s": 1.0, "refused": "quota"}))
    assert trouble_of(run, state_of(run))["what"] == "disk quota used up, the run waits for room"
    write_over(folder.heartbeat, json.dumps({"monotonic_s": 2.0, "refused": None}))
    assert what(run) is None
    folder.release()


def test_a_wish_that_an_older_agent_wrote_is_read(tmp_path):
    """And one that is written over it, whatever their lengths."""
    run, folder = held(tmp_path)
    for older in ("run", "stop", "cancel"):
        write_durably(run.wish, older)
        assert run.read_wish() == older
        run.write_wish("stop")
        assert Path(run.wish).read_text().strip() == "stop"
    folder.release()


def test_the_host_of_a_full_disk_is_named():
    """By the client, in `ps` and while a run is followed; an older agent's words stay."""
    trouble = Trouble(what="disk full, the run waits for room", kind="disk-full")
    assert trouble.on("lab").words == "disk full on lab, the run waits"
    assert RunState(state="running", trouble=trouble).on("lab").trouble.words == trouble.on("lab").words
    assert Trouble(what="its agent is frozen", since_s=25).on("lab").words == "its agent is frozen for 25 s"


def test_a_script_that_prints_no_steps_shows_its_last_loss(tmp_path):
    """Of the heartbeat while it runs, of its end after that; a step that is known goes before it."""
    run, folder = held(tmp_path)
    folder.write_state("running", attempt=1, step=None, loss=None)
    write_over(folder.heartbeat, json.dumps({"step": None, "loss": 0.5}))
    assert summary(run, folder.read_state())["loss"] == 0.5
    folder.write_state("succeeded", attempt=1, step=None, loss=0.4)
    line = summary(run, folder.read_state())
    assert (line["step"], line["loss"]) == (None, 0.4)
    folder.release()


def test_a_run_that_waits_or_is_mended_shows_the_last_step_that_is_known(tmp_path):
    """Until its new attempt has trained one. An agent that died left its last step in the heartbeat alone."""
    run, folder = held(tmp_path)
    assert (summary(run, state_of(run))["step"], summary(run, state_of(run))["loss"]) == (None, None)
    folder.write_state("running", attempt=1, step=20, loss=2.0)
    write_over(folder.heartbeat, json.dumps({"step": 30, "loss": 1.5}))
    folder.release()
    for state, reason in (("resuming", "preempted"), ("waiting", "secret"), ("running", None)):
        folder = run.new_folder()
        folder.write_state(state, reason, attempt=2, step=None, loss=None)
        line = summary(run, folder.read_state())
        assert (line["step"], line["loss"]) == (30, 1.5)
        folder.release()
    write_over(folder.heartbeat, json.dumps({"step": 21, "loss": 1.9}))
    assert summary(run, folder.read_state())["step"] == 21  # it began again from an earlier step


def test_what_a_job_waits_in_its_queue_is_no_time_of_its_run(tmp_path):
    """Before the first attempt and between two, and after an end that a client wrote; an agent that died left a heartbeat."""
    run, folder = held(tmp_path, "slurm")
    folder.release()
    assert took_s(run, "reserved") == 0.0
    ago_s = ((9000, 8000, "resuming"), (5000, 4990, "running"), (100, 90, "running"))
    for begin_s, end_s, state in ago_s:
        folder = run.new_folder()
        begin = time.time() - begin_s
        write_durably(folder.attempt, json.dumps({"kind": "attempt", "time": begin}))
        folder.write_state(state, time=time.time() - end_s)
        folder.release()
        if begin_s == 5000:
            write_over(folder.heartbeat, json.dumps({"ran_s": 400.0}))
    assert took_s(run, "running") == pytest.approx(1500, abs=5)
    assert took_s(run, "resuming") == pytest.approx(1410, abs=5)
    folder.write_state("stopped", time=time.time() - 70)
    contact = run.new_folder()
    write_durably(contact.attempt, json.dumps({"kind": "contact", "time": time.time()}))
    contact.write_state("stopped", "by-user-now")
    contact.release()
    assert took_s(run, "stopped") == pytest.approx(1430, abs=5)


def test_the_time_of_a_run_is_the_time_in_which_it_ran(tmp_path):
    """Of a live run until now, of one that died until its last sign; a wait that its agent left out does not count."""
    run, folder = held(tmp_path)
    folder.release()
    folder = run.new_folder()
    folder.write_state("running", time=time.time() - 1000, took_s=20.0)
    assert took_s(run, "running") == pytest.approx(1020, abs=5)
    assert took_s(run, "interrupted") == 20.0
    events = [{"kind": "state", "time": time.time() - 1000 + past} for past in (1, 30)]
    Path(folder.events).write_text("".join(f"{json.dumps(one)}\n" for one in events) + '{"torn')
    assert took_s(run, "interrupted") == pytest.approx(50, abs=1)
    for beaten_s, shown in (
        (48.0, 50),
        (100.0, 100),
        (30.0, 30 + HEARTBEAT_S),
    ):  # a full disk; a clock that was set
        write_over(folder.heartbeat, json.dumps({"took_s": beaten_s}))
        assert took_s(run, "interrupted") == pytest.approx(shown, abs=1)
    folder.release()
    assert (state_of(run)["state"], state_of(run)["took_s"]) == ("interrupted", 35.0)
    folder = run.new_folder()
    folder.write_state("resuming", "disk", time=time.time() - 500, took_s=35.0)
    assert took_s(run, "resuming") == 35.0
    folder.release()


@pytest.mark.testbed
def test_a_run_that_a_full_disk_let_end_without_a_record_has_its_time(small_disk):
    """Its recorded state is that of its start, and its end has no time. Its evidence says that the disk refused the rest."""
    run, folder = held(small_disk)
    run.write_wish("run")
    folder.write_state("running", took_s=1.0)
    write_over(folder.heartbeat, json.dumps({"took_s": 400.0, "step": 7, "refused": "disk-full"}))
    fill(small_disk / "filler")
    run.write_wish("stop")
    folder.release()
    line = summary(run, state_of(run))
    assert (line["state"], line["step"], line["took_s"], line["ended"]) == ("stopped", 7, 400.0, None)
    assert line["evidence"] == {"disk": "full: its later output and metrics, and its end, were not recorded"}
    (small_disk / "filler").unlink()
    contact.stop(run, "stop")
    assert json.loads(Path(run.last().state).read_text())["evidence"] == line["evidence"]


def test_the_last_step_of_a_dead_agent_is_that_of_its_events(tmp_path):
    """Its heartbeat is up to five seconds older, and its last state is of its start or of a checkpoint."""
    run, folder = held(tmp_path)
    folder.write_state("running", attempt=1, step=10, loss=3.0)
    write_over(folder.heartbeat, json.dumps({"step": 18, "loss": 2.0}))
    told = {"kind": "metric", "time": time.time()}
    metrics = [
        {**told, "rank": 0, "step": 30, "values": {"loss": 1.5}},
        {**told, "rank": 0, "step": 33, "values": {"grad_norm": 0.1}},
        {**told, "rank": 1, "step": 34, "values": {"loss": 0.1}},
        {**told, "rank": 0, "step": "35", "values": {"loss": 0.2}},
        {**told, "rank": 0, "step": None, "values": {"loss": [0.3]}},
    ]
    Path(folder.events).write_text("".join(f"{json.dumps(one)}\n" for one in metrics) + '{"torn')
    assert summary(run, state_of(run))["step"] == 18
    folder.release()
    found = state_of(run)
    assert (found["state"], found["step"], found["loss"]) == ("interrupted", 33, 1.5)
    assert (summary(run, found)["step"], summary(run, found)["loss"]) == (33, 1.5)
    run.new_folder().write_state("failed", "not-restartable")
    assert (summary(run, state_of(run))["step"], summary(run, state_of(run))["loss"]) == (33, 1.5)


def took_s(run, state):
    return summary(run, {"state": state})["took_s"]
