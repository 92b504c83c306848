"""A run that is prepared as for a service, and its segments, run on this machine by the real agent from real payloads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from testbed.client import REPOSITORY
from testbed.toy import rung

from launcher.agent.record.files import read_json
from launcher.agent.record.rundir import Run
from launcher.agent.serving import contact
from launcher.agent.serving.requests import RunRequest
from launcher.agent.serving.session import ClientSession
from launcher.agent.verbs import preparing
from launcher.backends.spool.spool import OutputChanges, Spool
from launcher.transport.agent_file import agent_file

RUN = "261122-counts-aaaaaa"
PLACE = "kaggle-alice"
TRAIN = REPOSITORY / "tests" / "contract" / "train.py"
STEPS = 12


class Segments:
    """The spool with the run in it, and a folder for each segment: payload, inputs, working, what it printed."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        """Make an empty spool; the code of the run is the training of the contract."""
        self.folder = folder
        self.root = folder / "spool"
        self.ledger_path = folder / "ledger"
        agent = folder / "client" / "agent.pyz"
        agent.parent.mkdir(parents=True)
        agent.write_bytes(agent_file().data)
        patch.setattr(sys, "argv", [str(agent)])
        patch.setenv("LAUNCH_HOST_ID", PLACE)
        self.code = {"train.py": TRAIN.read_bytes()}
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def run(self) -> Run:
        """The run as it is in the spool."""
        return Run(str(self.root / "runs" / RUN))

    def prepare(self, **settings: Any) -> None:
        """Have the agent's own verbs make the run, and place its code."""
        plan = {
            "version": 1, "job": "counts", "host": "kaggle", "command": ["python3", "train.py"],
            "profile": {"name": "cpu", "title": "CPU"}, "ladder": [rung("fp32")], "attempts": 9, "restart": False,
            "stop_grace_s": 5.0, "steps": STEPS, "seed": 0, "loader_workers": 0, "save_every_steps": 5,
            "keep_checkpoints": 9, "method": "full", "model": None, "data": {},
            "settings": {
                "ledger": str(self.ledger_path), "crashes_at": 0, "waits_at": 0, "ignores_sigterm": False, **settings,
            },
            "split": {"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2},
        }  # fmt: skip
        session = ClientSession(str(self.root), None)
        preparing.create(session, preparing.Create(RUN, "kaggle"), json.dumps(plan).encode())
        manifest = {}
        for name, data in self.code.items():
            digest = hashlib.sha256(data).hexdigest()
            path = Path(session.store.file(digest))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            manifest[f"code/{name}"] = {"sha256": digest, "size": len(data), "mode": 0o644}
        reply = preparing.offer(session, RunRequest(RUN), json.dumps(manifest).encode())
        assert reply.values == {"missing": []}
        session.prepared.pop(RUN).release()

    def payload(self, number: int, *, tree: bool = False, **orders: Any) -> None:
        """Make the payload of a segment of what is in the spool; with `tree` its work/ is an archive among the inputs."""
        payload = self.of(number, "payload")
        shutil.copytree(self.run.path, payload / "run", ignore=_left_here, symlinks=True)
        shutil.copy(sys.argv[0], payload / "agent.pyz")
        self.of(number, "inputs").mkdir(exist_ok=True)
        archived = self._archive(number) if tree else None
        record = {
            "version": 1, "run": RUN, "segment": number, "session_s": 600.0, "place_id": PLACE, "internet": False,
            "tree": archived, "earlier": number > 1, "cards": [], "requirements": [], "torch": [],
        }  # fmt: skip
        (payload / "segment.json").write_text(json.dumps({**record, **orders}))

    def _archive(self, number: int) -> dict[str, str]:
        work = self.of(number, "payload") / "run" / "work"
        part = self.folder / "tree"
        with tarfile.open(part, "w:gz") as archive:
            for path in sorted(work.iterdir()):
                archive.add(path, path.name)
        shutil.rmtree(work)
        digest = hashlib.sha256(part.read_bytes()).hexdigest()
        name = f"launch-{digest[:16]}.tree"
        (self.of(number, "inputs") / "datasets" / "alice" / "code").mkdir(parents=True)
        part.rename(self.of(number, "inputs") / "datasets" / "alice" / "code" / name)
        return {"file": name, "sha256": digest}

    def of(self, number: int, name: str) -> Path:
        """Name a folder or a file of a segment."""
        (self.folder / f"segment-{number}").mkdir(exist_ok=True)
        return self.folder / f"segment-{number}" / name

    def start(
        self, number: int, variables: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> subprocess.Popen[bytes]:
        """Start a segment, in a session of its own."""
        payload, working = self.of(number, "payload"), self.of(number, "working")
        working.mkdir(exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LAUNCH_", "COV_"))}
        with self.of(number, "stdout").open("wb") as output:
            process = subprocess.Popen(
                [python, "-I", payload / "agent.pyz", "segment", payload, working, self.of(number, "inputs")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                env={**kept, **(variables or {})},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def session(self, number: int, variables: Mapping[str, str] | None = None) -> int:
        """Run a segment to its end; return its exit status."""
        return self.start(number, variables).wait(120)

    def kernel(self, number: int) -> Run:
        """The run as it is where a segment runs."""
        return Run(str(self.of(number, "working") / "launch" / "runs" / RUN))

    def printed(self, number: int) -> str:
        """What a segment has printed so far."""
        return self.of(number, "stdout").read_text()

    def fed(self, number: int) -> Spool:
        """Feed the spool with what a segment has printed."""
        with Spool(Path(self.run.path), number) as spool:
            spool.take(self.printed(number))
        return spool

    def settled(self, number: int) -> OutputChanges:
        """Put a segment's outputs into the spool."""
        top = Path(self.kernel(number).path)
        with Spool(Path(self.run.path), number) as spool:
            return spool.settle(outputs_in(top))

    def go_on(self, number: int, **orders: Any) -> None:
        """Resume the run with a further segment, whose inputs are the outputs of the one before it."""
        contact.settle(self.run, "resuming", "agent-lost").release()
        self.payload(number, **orders)
        mounted = self.of(number, "inputs") / "notebooks" / "alice" / f"launch-{number - 1}"
        shutil.copytree(self.of(number - 1, "working"), mounted)

    def ledger(self) -> list[int]:
        """The steps in the order in which they were trained."""
        return (
            [int(line) for line in self.ledger_path.read_text().split()] if self.ledger_path.exists() else []
        )

    def state(self, number: int) -> dict[str, Any]:
        """The newest state on record where a segment ran."""
        folders = sorted(Path(self.kernel(number).record).glob("[0-9]*"))
        return read_json(str(folders[-1] / "state.json"))

    def clear_away(self) -> None:
        """End what is left of the segments."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def outputs_in(top: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files below a folder as outputs, each in pieces."""
    for path in sorted(top.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(top)), iter([path.read_bytes()])


def record_of(run: Run) -> dict[str, bytes]:
    """The files of a run's record by path, but for those that are never sent."""
    top = Path(run.path)
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted((top / "record").glob("[0-9]*/*"))
        if path.name != "lock" and not path.name.startswith(".")
    }


def _left_here(folder: str, names: list[str]) -> list[str]:
    """What of a run's folder stays with the client: locks, the larger files of earlier folders, checkpoints."""
    left = (
        {"lock", "contact.lock", "keeper.lock", "log.txt", "events.jsonl"} if "/work" not in folder else set()
    )
    left |= {"checkpoints"} if folder.endswith("/work") else set()
    return [name for name in names if name in left]
