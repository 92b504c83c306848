"""Scripts that say nothing and do nothing, on this machine: hung ones, and ones that have ended and whose process stays."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from testbed.client import is_gone, until

from launcher.remote.store import worker_folder

pytestmark = [
    pytest.mark.slow(reason="each test starts an agent and waits for some seconds of silence"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes use"),
]
LIMIT_S = 1.2
LONG = "time.sleep(10000)"
BEGIN = """\
import json, os, subprocess, sys, threading, time
ledger = open(os.environ["LEDGER"], "a", buffering=1)
def note(*words):
    print(*words, os.getpid(), file=ledger)
def stay():
    thread = threading.Thread(target=lambda: time.sleep(10000))
    thread.start()
note("begin")
"""


class Silent:
    """A script that is silent, and the ledger that it writes outside of its run."""

    def __init__(self, toy, body: str, **plan) -> None:
        self.toy = toy
        self.ledger = toy.home / "ledger.txt"
        told = {
            "inject": True,
            "hang_minutes": LIMIT_S / 60,
            "steps": None,
            "variables": {"LEDGER": str(self.ledger)},
        }
        toy.plan(**{**told, **plan})
        worker_folder.unpack(str(toy.agent))
        (Path(toy.run.code) / "train.py").write_text(BEGIN + body)

    def pids(self) -> list[int]:
        """The processes that wrote to the ledger."""
        return [int(line.split()[-1]) for line in self.ledger.read_text().splitlines()]

    def evidence(self, name: str) -> list[dict]:
        """What the agent has recorded under a name."""
        return [one["values"][name] for one in self.toy.events("evidence") if name in one["values"]]

    def log(self) -> str:
        """What the last attempt has printed."""
        return Path(self.toy.run.record, "0002", "log.txt").read_text()


def test_a_script_that_hangs_at_once_is_named_with_its_stack_and_ended(toy):
    """No step was ever made: its place stands in the log, and its process is gone."""
    run = Silent(toy, "def lock():\n    " + LONG + "\nlock()\n")
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "hang")
    assert "before its second step" in ended["evidence"]["why"]
    assert "in lock" in run.log()
    (silence,) = run.evidence("silence")
    assert silence["doing"] == "idle"
    assert [one["pid"] for one in silence["processes"] if one["stacks"]] == run.pids()
    assert all(is_gone(pid) for pid in run.pids())


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("stay()\nprint('saved')\n", ("succeeded", "exit-only")),
        (
            "for step in range(5):\n    print({'loss': 1.0, 'step': step}); time.sleep(0.05)\nstay()\n",
            ("succeeded", "exit-only"),
        ),
        ("stay()\nraise ValueError('a mistake')\n", ("failed", "user-code-error")),
        ("stay()\nsys.exit(3)\n", ("failed", "exit-nonzero")),
        ("import atexit\natexit.register(lambda: threading.Event().wait())\n", ("succeeded", "exit-only")),
        (
            "import multiprocessing\nchild = multiprocessing.get_context('fork').Process(target=time.sleep, args=(10000,))\nchild.start()\n",
            ("succeeded", "exit-only"),
        ),
        ("import launcher_worker\nlauncher_worker.done(3)\n" + LONG, ("succeeded", "completed")),
    ],
    ids=["thread", "steps", "error", "status", "exit-function", "child", "done"],
)
def test_a_script_that_has_ended_and_stays_has_its_own_end(toy, body, state):
    """A thread, a child or a function at exit keeps the process; what the script itself ended with counts."""
    run = Silent(toy, body)
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == state
    assert "its process stayed" in ended["evidence"]["lingered"]
    assert "doubt" not in ended["evidence"]
    assert all(is_gone(pid) for pid in run.pids())
    if state[1] == "user-code-error":
        assert "a mistake" in ended["evidence"]["line"]


def test_after_the_end_of_a_process_its_shell_goes_on(toy):
    """The command is more than the Python that lingers: what follows it is done, and has an end of its own."""
    after = 'echo after $$ >> "$LEDGER"; python3 -c "import nothing_of_that_name"'
    run = Silent(toy, "stay()\n", command=["sh", "-c", f"python3 train.py; {after}"])
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "missing-dependency")
    assert "after" in run.ledger.read_text()


@pytest.mark.parametrize("steps", [0, 3], ids=["before a step", "with a pace"])
def test_a_helper_that_has_ended_does_not_hide_that_the_script_hangs(toy, steps):
    """Its own thread serves the script, which waits in its main thread."""
    serve = "import threading, time\nthreading.Thread(target=time.sleep, args=(10000,)).start()"
    body = (
        f"for step in range({steps}):\n    print({{'loss': 1.0, 'step': step}}); time.sleep(0.05)\n"
        f"subprocess.Popen([sys.executable, '-c', {serve!r}])\n"
    )
    run = Silent(toy, body + LONG)
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "hang")
    assert "lingered" not in ended["evidence"]
    assert bool(run.evidence("lingers")) == (
        steps == 0
    )  # an hour later it is told that the helper was not the reason


def test_one_that_does_not_leave_is_killed_and_its_exit_status_is_in_doubt(toy):
    """It is stuck in the kernel's or a library's code at exit, where no signal of Python's arrives."""
    stuck = (
        "import atexit, ctypes\nlock = ctypes.create_string_buffer(64)\nlibrary = ctypes.PyDLL(None)\n"
        "atexit.register(lambda: [library.pthread_mutex_lock(lock) for _ in range(2)])\n"
    )
    run = Silent(toy, stuck)
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("succeeded", "exit-only")
    assert ended["evidence"]["doubt"]["class"] == "no-status"
    assert all(is_gone(pid) for pid in run.pids())


def test_a_wait_after_the_training_is_a_hang_while_the_script_goes_on(toy):
    """After the Trainer's end scripts merge, upload and train again: a success it is not, before they have ended."""
    body = (
        "from launcher_worker.channel import send\n"
        "send('begin', values={'step': 0, 'steps': 2}, source='hook')\n"
        "for step in (1, 2):\n    send('metric', step, {'loss': 1.0}, 'hook')\n"
        "send('end', source='hook')\n" + LONG
    )
    Silent(toy, body)
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "hang")
    assert "after the end of its training" in ended["evidence"]["why"]


def test_a_silence_in_which_something_is_used_is_named_and_not_ended(toy):
    """A byte now and then over a connection: it works, as far as anybody can tell, and is not disturbed."""
    work = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "out = socket.create_connection(server.getsockname()); into, _ = server.accept()\n"
        "for _ in range(50):\n    time.sleep(0.1); out.send(b'x'); into.recv(1)\n"
    )
    run = Silent(toy, work + "note('done')\n", hang_minutes=2.5 / 60)
    assert toy.ended()["state"] == "succeeded"
    assert "done" in run.ledger.read_text()
    assert run.evidence("silence")[0]["doing"] == "busy"
    assert not any(one["stacks"] for one in run.evidence("silence")[0]["processes"])


def test_a_handler_of_the_script_s_own_gets_no_signal(toy):
    """SIGUSR1, SIGUSR2 and SIGTERM are its own; it is asked for its stacks by another signal, and goes on."""
    body = (
        "import signal\n"
        "for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(number, lambda *_: note('signalled'))\n"
        "time.sleep(3); print('awake'); time.sleep(0.2); note('done')\n"
    )
    run = Silent(toy, body, hang_minutes=None)
    keeper = toy.start()
    until(lambda: len(run.pids() if run.ledger.exists() else []) == 1, "the script")
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.pids()[0], 44)
    toy.wait(keeper)
    assert "Current thread" in run.log()
    assert "signalled" not in run.ledger.read_text()
    assert "done" in run.ledger.read_text()
