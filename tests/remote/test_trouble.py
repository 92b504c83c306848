"""What keeps a live run from going on is said: a full disk, a paused container, an agent that does not move."""

import json
import os
import time
from pathlib import Path

import pytest

from launcher.remote.fate import docker
from launcher.remote.fate.run_state import state_of
from launcher.remote.fate.trouble import trouble_of
from launcher.remote.record.files import write_durably
from launcher.remote.record.rundir import Run
from launcher.remote.serving.summary import summary
from launcher.remote.system import process


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


def test_a_paused_container_is_named(tmp_path, monkeypatch):
    """By its engine."""
    run, folder = held(tmp_path, "docker")
    beat(folder, 25.0)
    answers = {"paused": "its container is paused", "running": "its agent is frozen"}
    for status, words in answers.items():
        found = {run.id: {"status": status}}
        monkeypatch.setattr(docker.FATE, "containers_of", lambda *_, found=found: found)
        assert what(run) == words
    folder.release()


@pytest.mark.testbed
def test_a_full_disk_is_named(small_disk):
    """The run's own: its heartbeat may be fresh, or empty."""
    run, folder = held(small_disk)
    assert what(run) is None
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    assert what(run) == "the disk is full, the run waits for room"
    Path(folder.heartbeat).write_text("")
    assert what(run) == "the disk is full, the run waits for room"
    filler.unlink()
    folder.release()
