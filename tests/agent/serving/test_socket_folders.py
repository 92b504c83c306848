"""The folder of an agent's socket: a living agent's is never taken away, a dead one's always may be. The witness is `ls`."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from testbed.client import REPOSITORY, until

from launcher.agent.system import socket_folders

ROUNDS = 200
RUN = "261128-x-aaaaaa"
LISTENS = """
import sys, time
from launcher.agent.record.rundir import Run
from launcher.agent.attempt.streams import listening
with listening(Run(sys.argv[1] + "/runs/261128-x-aaaaaa")) as (listener, path):
    print(path, flush=True)
    time.sleep(600)
"""
SWEEPS = """
import sys, time
from launcher.agent.system import socket_folders
print("begun", flush=True)
while True:
    for path in socket_folders.dead_folders(sys.argv[1]):
        socket_folders.remove(path)
"""


@pytest.fixture
def short(monkeypatch):
    """A temporary folder of the test's own, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


@pytest.fixture
def start(short, tmp_path):
    """Start a program with that temporary folder; return it with its first line. All are killed at the end."""
    started = []

    def begin(program):
        env = {**os.environ, "TMPDIR": str(short), "PYTHONPATH": str(REPOSITORY)}
        words = [sys.executable, "-c", program, str(tmp_path)]
        started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1], started[-1].stdout.readline().strip()

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_only_the_folder_of_a_dead_agent_goes(short, start, tmp_path):
    """By SIGKILL, which lets it remove nothing; a stopped one lives. Those of another root stay."""
    (dead, lost), (stopped, kept) = start(LISTENS), start(LISTENS)
    stopped.send_signal(signal.SIGSTOP)
    dead.kill()
    dead.wait()
    names = [os.path.dirname(path) for path in (lost, kept)]
    assert socket_folders.dead_folders(str(tmp_path / "another")) == []
    assert socket_folders.dead_folders(str(tmp_path)) == names[:1]
    assert not socket_folders.remove(names[1])
    with socket_folders.socket_path(str(tmp_path), RUN) as path:  # as the next attempt does
        assert sorted(map(str, short.iterdir())) == sorted([names[1], os.path.dirname(path)])
    assert [str(one) for one in short.iterdir()] == names[1:]


def test_what_is_not_an_agents_stays(short, tmp_path):
    """A folder that others may enter, one with more in it, a link, a file, and what older agents have made."""
    with socket_folders.socket_path(str(tmp_path), RUN) as path:
        prefix = os.path.dirname(path)[:-8]
    made = [f"{prefix}{name * 8}" for name in "abcd"] + [str(short / "launch-abcdefgh")]
    for folder, mode in ((made[0], 0o755), (made[1], 0o700), (made[4], 0o700)):
        os.mkdir(folder, mode)
    (tmp_path / "file").write_text("")
    os.link(tmp_path / "file", os.path.join(made[1], "file"))
    os.symlink(tmp_path, made[2])
    os.link(tmp_path / "file", made[3])
    for found in (*socket_folders.dead_folders(str(tmp_path)), *made[:4]):
        assert not socket_folders.remove(found)
    assert sorted(map(str, short.iterdir())) == sorted(made)


def test_no_sweep_takes_the_folder_of_an_agent_that_just_begins(short, start, tmp_path):
    """While others sweep all the time: after each beginning its socket is there, and its folder goes with it."""
    for _ in range(2):
        start(SWEEPS)
    for _ in range(ROUNDS):
        with (
            socket_folders.socket_path(str(tmp_path), RUN) as path,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            listener.bind(path)
            listener.listen()
            with socket.socket(socket.AF_UNIX) as worker:
                worker.connect(path)
    until(lambda: not any(short.iterdir()), "the end of what was made")


def test_a_folder_that_a_sweep_took_before_it_was_locked_is_not_used(short, monkeypatch, tmp_path):
    """In the moment between its making and its lock it looks like a dead agent's."""
    taken, lock = [], fcntl.flock

    def late(descriptor, how):
        if not taken:
            taken.extend(short.iterdir())
            taken[0].rmdir()
        return lock(descriptor, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        with (
            socket_folders.socket_path(str(tmp_path), RUN) as path,
            socket.socket(socket.AF_UNIX) as listener,
        ):
            listener.bind(path)
            assert os.path.dirname(path) != str(taken[0])
    assert list(short.iterdir()) == []
