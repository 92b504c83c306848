"""Real scripts that hang, each in another way: each is named with its stack, by a clock that a test sets on."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest
from testbed.client import REPOSITORY, until
from testbed.clock import Clock
from testbed.tables import mostly_long

from launcher.agent.attempt.hang_watch import IDLE, HangWatch
from launcher.agent.attempt.stacks import STACKS_SIGNAL
from launcher.agent.attempt.training_command import Command, CommandStart
from launcher.agent.system import process
from launcher.agent.system.process_use import is_asleep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes use")
STARTUP = REPOSITORY / "launcher" / "worker" / "launcher_worker" / "startup"
HANGS = {
    "sleep": "import time; time.sleep(1e6)",
    "a lock that is held": "import threading; a = threading.Lock(); a.acquire(); a.acquire()",
    "an empty queue": "import queue; queue.Queue().get()",
    "an event that nobody sets": "import threading; threading.Event().wait()",
    "a thread that does not return": (
        "import threading, time; t = threading.Thread(target=time.sleep, args=(1e6,), daemon=True); t.start(); t.join()"
    ),
    "a server that nobody asks": "import socket; socket.create_server(('127.0.0.1', 0)).accept()",
    "a peer that does not answer": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "a connection that nobody accepts": (
        "import socket; s = socket.create_server(('127.0.0.1', 0), backlog=1); "
        "c = socket.create_connection(s.getsockname()); c.recv(1)"
    ),
    "a lock of a file": (
        "import fcntl; a, b = open('lock', 'w'), open('lock', 'w'); fcntl.flock(a, 2); fcntl.flock(b, 2)"
    ),
    "a pipe without data": "import os; r, w = os.pipe(); os.read(r, 1)",
    "a pipe without a writer": "import os; os.mkfifo('fifo'); open('fifo')",
    "a program that does not end": "import subprocess; subprocess.run(['sleep', '1000000'])",
    "a child that waits too": (
        "import multiprocessing as m; b = m.get_context('fork').Barrier(3); "
        "c = m.get_context('fork').Process(target=b.wait, daemon=True); c.start(); b.wait()"
    ),
    "a loop without events": "import asyncio; asyncio.run(asyncio.Event().wait())",
    "a result that never comes": (
        "import concurrent.futures as f, threading; f.Future().result()"
    ),
    "a select": "import select, socket; a, b = socket.socketpair(); select.select([a], [], [])",
    "a full pipe": "import os; r, w = os.pipe(); os.fdopen(w, 'wb').write(bytes(1 << 20))",
}  # fmt: skip


@mostly_long("name", HANGS, ci=(0, -1))
def test_a_script_that_hangs_is_named_with_its_stack_and_is_a_hang_after_an_hour(tmp_path, name):
    """The place where it waits is printed, it still waits there, and only then the hour is full."""
    (tmp_path / "train.py").write_text(
        "def stuck():\n" + textwrap.indent(HANGS[name].replace("; ", "\n"), "    ") + "\nstuck()\n"
    )
    spared = [one.pid for one in process.own_descendants()]
    stacks = str(tmp_path / "stacks.txt")
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "LAUNCH_HOOK": "observe"}
    variables["LAUNCH_STACKS"] = stacks
    command = Command(CommandStart([sys.executable, "train.py"], str(tmp_path), variables, 1, stacks=stacks))
    printed = bytearray()

    def waits() -> bool:
        """Whether it can be asked, and none of its processes does anything."""
        before = command.use(spared)
        pids = [one.pid for one in process.own_descendants() if one.pid not in spared]
        is_still = all(is_asleep(pid) for pid in pids for _ in range(20))
        can_be_asked = process.catches(command.pid, STACKS_SIGNAL)
        return can_be_asked and is_still and before is not None and before == command.use(spared)

    def has_stack() -> bool:
        printed.extend(command.take_stacks())
        return b"in stuck" in printed

    try:
        until(waits, "the script to hang")
        clock = Clock()
        live = HangWatch(None, clock)
        for _ in range(1000):
            clock.now_s += 30.0
            if live.is_look_due():
                live.look(command.use(spared))
            if live.doing == IDLE and not printed:
                named_s = clock.now_s
                live.await_answer()
                told = command.wait_points(spared, asks_sleeping=True)
                assert command.pid in [one["pid"] for one in told if one["stacks"]]
                until(has_stack, "the stack")
                until(waits, "the last of its answer")
            if live.is_hung():
                break
        assert 900 <= named_s - 1000 <= 1000
        assert 3600 <= clock.now_s - 1000 <= 3800
        assert is_asleep(command.pid)
    finally:
        for one in process.own_descendants():
            if one.pid not in spared:
                process.send(one, signal.SIGKILL)
        until(lambda: command.reap() is not None, "the end")
        command.output.close()
