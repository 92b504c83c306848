"""Scripts that say nothing and do nothing, on this machine: hung ones, and ones that have ended and whose process stays."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from testbed.client import is_gone, until
from testbed.toy import Toy

from launcher.agent.store import worker_folder

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


@pytest.fixture
def together(tmp_path):
    """What starts scripts at the same time, because each waits for seconds; it returns their runs and ends by name."""
    toys = []

    def run_all(bodies: dict[str, str]) -> dict[str, tuple[Silent, dict]]:
        runs = {}
        for number, (name, body) in enumerate(bodies.items()):
            (tmp_path / str(number)).mkdir()
            toys.append(Toy(tmp_path / str(number)))
            runs[name] = Silent(toys[-1], body), toys[-1].start()
        return {name: (run, run.toy.wait(keeper)) for name, (run, keeper) in runs.items()}

    yield run_all
    for toy in toys:
        toy.clear_away()


SERVE = "import threading, time\nthreading.Thread(target=time.sleep, args=(10000,)).start()"
HELPER = f"subprocess.Popen([sys.executable, '-c', {SERVE!r}])\n"
STEPS = "for step in range(5):\n    print({'loss': 1.0, 'step': step}); time.sleep(0.05)\n"
TRAINER = (
    "from launcher_worker.channel import send\n"
    "send('begin', values={'step': 0, 'steps': 2}, source='hook')\n"
    "for step in (1, 2):\n    send('metric', step, {'loss': 1.0}, 'hook')\n"
    "send('end', source='hook')\n"
)
HANGS = {
    "at once": "def lock():\n    " + LONG + "\nlock()\n",
    "after a Trainer's end": TRAINER + LONG,
    "beside a helper whose main thread has ended": HELPER + LONG,
    "beside such a helper, with a pace": STEPS + HELPER + LONG,
}

IN_THREAD = (
    "def train():\n    for step in range(40):\n        print({'loss': 1.0, 'step': step}); time.sleep(0.1)\n"
    "    threading.Event().wait()\n"
    "threading.Thread(target=train).start()\n"
)
"""Its main thread has ended long before it hangs."""


@pytest.mark.long
def test_scripts_that_hang_are_named_with_their_stacks_and_ended(together):
    """Before a step, and after the end of a training, while the main thread waits: no success, and nothing is left."""
    found = together({**HANGS, "a training in a thread": IN_THREAD})
    for name, (run, ended) in found.items():
        assert (ended["state"], ended["reason"]) == ("failed", "hang"), name
        assert "lingered" not in ended["evidence"]
        place = (
            f"{len((BEGIN + HANGS[name]).splitlines())} in <module>"
            if name in HANGS
            else f"{len(BEGIN.splitlines()) + 4} in train"
        )
        assert f'train.py", line {place}' in run.log()
        assert all(is_gone(pid) for pid in run.pids())
    run, ended = found["at once"]
    assert "before its second step" in ended["evidence"]["why"]
    assert "in lock" in run.log()
    (silence,) = run.evidence("silence")
    assert silence["doing"] == "idle"
    assert [one["pid"] for one in silence["processes"] if one["stacks"]] == run.pids()
    assert "after the end of its training" in found["after a Trainer's end"][1]["evidence"]["why"]
    lingered = [name for name, (run, _) in found.items() if run.evidence("lingers")]
    assert lingered == [
        "beside a helper whose main thread has ended"
    ]  # it is asked first, and was not the reason


ENDS = {
    "a thread": ("stay()\nprint('saved')\n", ("succeeded", "exit-only")),
    "a thread after steps": (STEPS + "stay()\n", ("succeeded", "exit-only")),
    "a mistake": ("stay()\nraise ValueError('a mistake')\n", ("failed", "user-code-error")),
    "an exit status": ("stay()\nsys.exit(3)\n", ("failed", "exit-nonzero")),
    "a function at exit": (
        "import atexit\natexit.register(lambda: threading.Event().wait())\n",
        ("succeeded", "exit-only"),
    ),
    "a child": (
        "import multiprocessing as m\nm.get_context('fork').Process(target=time.sleep, args=(10000,)).start()\n",
        ("succeeded", "exit-only"),
    ),
    "done": ("import launcher_worker\nlauncher_worker.done(3)\n" + LONG, ("succeeded", "completed")),
}


def test_scripts_that_have_ended_and_stay_have_their_own_ends(together):
    """A thread, a child or a function at exit keeps the process; what the script itself ended with counts."""
    found = together({name: body for name, (body, _) in ENDS.items()})
    for name, (run, ended) in found.items():
        assert (ended["state"], ended["reason"]) == ENDS[name][1], name
        assert "its process stayed" in ended["evidence"]["lingered"]
        assert "doubt" not in ended["evidence"]
        assert all(is_gone(pid) for pid in run.pids())
    assert "a mistake" in found["a mistake"][1]["evidence"]["line"]


def test_after_the_end_of_a_process_its_shell_goes_on(toy):
    """The command is more than the Python that lingers: what follows it is done, and has an end of its own."""
    after = 'echo after $$ >> "$LEDGER"; python3 -c "import nothing_of_that_name"'
    run = Silent(toy, "stay()\n", command=["sh", "-c", f"python3 train.py; {after}"])
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "missing-dependency")
    assert "after" in run.ledger.read_text()


def test_what_a_shell_prints_at_once_after_such_a_process_is_read(toy):
    """It is no part of what the process left behind."""
    error = "ModuleNotFoundError: No module named 'zzz'"
    Silent(toy, "stay()\n", command=["sh", "-c", f'python3 train.py; echo "{error}"'])
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("succeeded", "exit-only")
    assert error in ended["evidence"]["doubt"]["line"]


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


HANDLES_ALL = (
    "import os, signal, sys, time\n"
    "for number in range(34, 65):\n    signal.signal(number, lambda number, _: os.write(3, b'signalled'))\n"
    "time.sleep(10000)\n"
)
KEPT = "kept = os.open(os.environ['LEDGER'] + '.kept', os.O_WRONLY | os.O_CREAT)\n"
NOT_TOLD = {
    "a file of the script's own in place of its errors": KEPT + "os.dup2(kept, 2)\n" + LONG,
    "a child whose errors are kept": (
        KEPT
        + f"child = subprocess.Popen([sys.executable, '-c', 'import time; {LONG}'], stderr=kept)\nchild.wait()\n"
    ),
    "a program that handles every signal, as one in Go": (
        KEPT + f"os.dup2(kept, 3)\nos.execv(sys.executable, [sys.executable, '-I', '-c', {HANDLES_ALL!r}])\n"
    ),
}


def test_a_process_that_hangs_is_asked_at_no_one_else_s_cost(together):
    """Its stacks go to no file of the script's, and only to what has the hook does a signal go: such a program is no script that has ended."""
    found = together(NOT_TOLD)
    for name, (run, ended) in found.items():
        assert (ended["state"], ended["reason"]) == ("failed", "hang"), name
        assert Path(f"{run.ledger}.kept").read_bytes() == b"", name
        asked = [one["pid"] for told in run.evidence("hang") for one in told["processes"] if one["stacks"]]
        assert bool(asked) is ("every signal" not in name)
        assert ("in <module>" in run.log()) is bool(asked)


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


def test_what_works_below_a_server_in_the_background_is_not_seen_and_not_ended(toy):
    """Such as tmux: what it does is handed over to its user."""
    server = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'tmux: server'); time.sleep(3)"
    run = Silent(toy, f"subprocess.run([sys.executable, '-c', {server!r}])\nnote('done')\n")
    assert toy.ended()["state"] == "succeeded"
    assert "done" in run.ledger.read_text()
    assert [one["doing"] for one in run.evidence("silence")] == ["unseen"]


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
