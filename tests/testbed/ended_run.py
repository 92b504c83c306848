"""A run that has ended on this machine as a host, made without a launch: its record, and what it wrote."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.system import process

RUN = "261122-train-k3f9w2"


class EndedRun:
    """A run below a root that has succeeded, whose code is a train.py and whose files the test writes."""

    def __init__(self, root: Path, run: str = RUN, *, outputs: list[str] | None = None) -> None:
        self.run = Run(str(root / "runs" / run))
        self.work = Path(self.run.work)
        self.run.make()
        plan = {
            "version": 1,
            "job": "train",
            "profile": {"name": "cpu", "title": "CPU"},
            "outputs": outputs or [],
        }
        write_durably(self.run.plan, json.dumps(plan))
        write_durably(self.run.wish, "run")
        write_durably(self.run.token, "0" * 32)
        self.write("code/train.py", b"print('hello')\n")
        manifest = {"code/train.py": {"sha256": sha256(b"print('hello')\n"), "size": 15, "mode": 0o644}}
        write_durably(self.run.manifest, json.dumps(manifest))
        folder = self.run.new_folder()
        record = {
            "version": 1, "run": run, "kind": "prepare", "folder": 1, "time": time.time(), "place_id": process.host_id(),
            "runtime": {"kind": "native", "interpreter": "python3"},
        }  # fmt: skip
        self.run.write_prepared(folder, record)
        folder.write_state("succeeded", "exit-only")
        folder.release()

    def write(self, path: str, data: bytes) -> Path:
        """Write a file as the run would have, by its path below work/."""
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def fill(self, sizes: Mapping[str, int]) -> None:
        """Write files of random bytes of these sizes."""
        for path, size in sizes.items():
            self.write(path, os.urandom(size))


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
