"""A run made by hand on this machine, with a ladder and a script of one's own; the real agent makes its attempts."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from testbed.client import REPOSITORY, kill_all_of, until

from launcher.agent.liveness.run_state import state_of
from launcher.agent.record.files import read_json, write_durably
from launcher.agent.record.rundir import TERMINAL, Run
from launcher.agent.system import process
from launcher.transport.agent_file import agent_file

RUN = "0101-toy-aaaa"
MODES = ("fp16", "bf16", "fp32")

PRELUDE = """
import json, os, signal, socket, sys, time
values = json.load(open(os.path.join(os.environ["LAUNCH_ATTEMPT"], "attempt.json")))
ledger = open(os.path.join({home!r}, "ledger"), "a", buffering=1)
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["LAUNCH_SOCKET"])
rung = values["rung"]

def write(**said):
    print(json.dumps(said), file=ledger)

def tell(kind, step=None, **values):
    channel.sendall(json.dumps(dict(kind=kind, step=step, rank=0, time=time.time(), values=values)).encode() + b"\\n")

def trip(step, since, name="nan-divergence", **more):
    tell("trip", step, **{{"class": name, "why": "the loss is not finite", "since": since, "loss": "nan", **more}})

def state():
    return json.load(open(os.path.join(os.environ["LAUNCH_ATTEMPT"], "state.json")))

def until(condition):
    while not condition():
        time.sleep(0.01)

def save(step):
    folder = os.path.join(values["folders"]["checkpoints"], "step-%d" % step)
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "rung"), "w").write(str(rung))
    import launcher_worker
    launcher_worker.save(step, folder)

def newest():
    import launcher_worker
    found = launcher_worker.resume_from()
    return os.path.basename(found) if found else None

def kill_agent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)

write(rung=rung, mode=values["precision"]["mode"], before=(values["remedy"] or {{}}).get("resume_before"), attempt=values["attempt"])
"""


def rung(mode: str) -> dict[str, Any]:
    """A precision of the ladder, as a plan has it."""
    return {
        "mode": mode, "device": "cpu", "capability": None, "base_dtype": "float32", "trainable_dtype": "float32",
        "autocast_dtype": None, "scaler": False, "tf32": False, "adam_eps": 1e-8, "attention": "sdpa",
        "compile": False, "why": "a test",
    }  # fmt: skip


def recorded_run(root: Path, name: str, state: str = "running", **changed: Any) -> Run:
    """The record of a run below a root, made by hand: nobody holds it, so it is interrupted unless it has ended."""
    run = Run(str(root / "runs" / name))
    run.make()
    folder = run.new_folder()
    told = {"place_id": process.host_id(), "boot_id": process.boot_id(), "kind": "prepare", **changed}
    write_durably(folder.attempt, json.dumps(told))
    folder.write_state(state)
    folder.release()
    write_durably(run.token, "token-of-" + name)
    return run


@functools.cache
def shared_agent() -> Path:
    """Return the agent's file for the tests of this process: what one of them has compiled of it the next ones load."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "agent.pyz").write_bytes(agent_file().data)
    return folder / "agent.pyz"


class Toy:
    """The run's folder below a home, what its training wrote outside it, and its keeper."""

    def __init__(self, home: Path, *, has_own_agent: bool = False) -> None:
        """Make the run. `has_own_agent`: the agent's file lies below the home, and takes its room."""
        self.home = home
        self.run = Run(str(home / ".launch" / "runs" / RUN))
        self.agent = Path(shutil.copy(shared_agent(), home)) if has_own_agent else shared_agent()
        self.keepers: list[subprocess.Popen[bytes]] = []
        self.run.make()
        os.makedirs(self.run.code)
        self.plan()
        write_durably(self.run.wish, "run")
        write_durably(self.run.token, "toy")
        folder = self.run.new_folder()
        prepared = {
            "version": 1, "run": RUN, "kind": "prepare", "folder": 1, "time": 1.0, "place_id": process.host_id(),
            "runtime": {"kind": "native", "interpreter": sys.executable},
        }  # fmt: skip
        write_durably(folder.attempt, json.dumps(prepared))
        folder.write_state("preparing")
        folder.release()

    def plan(self, modes: tuple[str, ...] = MODES, **more: Any) -> None:
        """Write the plan: a rung for each mode."""
        plan = {
            "version": 1, "job": "toy", "command": ["python3", "train.py"], "profile": {"name": "cpu", "title": "CPU"},
            "ladder": [rung(mode) for mode in modes], "attempts": 9, "restart": False, "stop_grace_s": 20.0,
            "steps": 9, "seed": 0, "loader_workers": 0, "save_every_steps": None, "method": "full", "model": None,
            "data": {}, "settings": {},
            "split": {"global_batch": 1, "ranks": 1, "micro_batch": 1, "accumulation": 1},
        }  # fmt: skip
        write_durably(self.run.plan, json.dumps({**plan, **more}))

    def script(self, body: str) -> None:
        """Write what is trained: `body` behind the prelude."""
        text = PRELUDE.format(home=str(self.home)) + body
        (Path(self.run.code) / "train.py").write_text(text)

    def start(self, *before: str) -> subprocess.Popen[bytes]:
        """Start the keeper; `before` are words to put before its command."""
        worker = str(REPOSITORY / "launcher" / "worker")
        keeper = subprocess.Popen(
            [*before, sys.executable, "-I", str(self.agent), "keep", self.run.path],
            env={**os.environ, "HOME": str(self.home), "TMPDIR": "/tmp", "PYTHONPATH": worker},
            start_new_session=True,
        )
        self.keepers.append(keeper)
        return keeper

    def ended(self) -> dict[str, Any]:
        """Start the run and wait for its end; return its state."""
        return self.wait(self.start())

    def wait(self, keeper: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for the end of a run that was started; return its state."""
        until(lambda: self.state()["state"] in TERMINAL, "the end")
        assert keeper.wait(30) == 0
        return self.state()

    def whole_plan(self) -> dict[str, Any]:
        """The plan as it is on disk."""
        return read_json(self.run.plan)

    def state(self) -> dict[str, Any]:
        """What a reader is told."""
        return state_of(self.run)

    def ledger(self) -> list[dict[str, Any]]:
        """What the training wrote outside the run."""
        path = self.home / "ledger"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rungs(self) -> list[int]:
        """The rungs in the order in which they were begun, by the training's own word."""
        return [line["rung"] for line in self.ledger() if "rung" in line]

    def record(self, number: int, name: str = "state") -> dict[str, Any]:
        """A folder's state.json, or another of its small files."""
        return read_json(os.path.join(self.run.record, f"{number:04}", f"{name}.json"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind, of all folders."""
        lines = [
            json.loads(line)
            for path in sorted(Path(self.run.record).glob("[0-9]*/events.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line["kind"] == kind]

    def clear_away(self) -> None:
        """End what is left of it."""
        kill_all_of(Path(self.run.path))
        for keeper in self.keepers:
            keeper.wait(30)
