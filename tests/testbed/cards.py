"""Simulated cards: an `nvidia-smi` that answers from a state file, and contexts that real processes hold.

Everything above that edge is the real code. One folder is one host's cards; it stands first on that host's PATH, and
on that of its container engine, which hands them on then.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.client import orphan, until

HERE = Path(__file__).resolve().parent
HOOK = "nvidia-container-runtime-hook"
DRIVER = "580.65.06"
KINDS = {
    "t4": ("Tesla T4", "7.5", 15360),
    "titan_rtx": ("NVIDIA TITAN RTX", "7.5", 24576),
    "p100": ("Tesla P100-PCIE-16GB", "6.0", 16280),
    "l40s": ("NVIDIA L40S", "8.9", 45372),
    "titan_v": ("NVIDIA TITAN V", "7.0", 12066),  # which no profile names
    "a100_40gb": ("NVIDIA A100-PCIE-40GB", "8.0", 40960),
    "a100_80gb": ("NVIDIA A100 80GB PCIe", "8.0", 81920),
}
FOUR_T4 = """
name = "t4x4"
title = "4 x T4 16 GB"
kind = "cuda"
capability = "7.5"
memory_gb = 16
count = 4
probe_names = ["Tesla T4"]
[peak]
fp32 = 8.1
fp16 = 65
bandwidth_gb_s = 320
source = "a test"
"""
"""A profile of four cards, which is none of ours."""
_HOLDER = """\
import os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import context
print(context.open_context(memory_mib=int(sys.argv[1])), flush=True)
time.sleep(1e6)
"""


def uuid_of(index: int) -> str:
    """Return the UUID of a simulated card."""
    return f"GPU-{index:08d}-0000-4000-8000-000000000000"


class Cards:
    """The cards of one host. `more` of a card are columns of nvidia-smi by name, or `lost=True`."""

    def __init__(self, folder: Path) -> None:
        """Make the programs and a host without cards in `folder`, which others must be able to enter."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "context.py", folder / "context.py")
        for name, source in (("nvidia-smi", "nvidia_smi.py"), (HOOK, "nvidia_hook.py")):
            (folder / name).write_text(f"#!/usr/bin/env -S python3 -B\n{(HERE / source).read_text()}")
            (folder / name).chmod(0o755)
        (folder / "holder.py").write_text(_HOLDER)
        self._children: list[subprocess.Popen[str]] = []
        self._left: list[int] = []
        self._state: dict[str, Any] = {
            "cards": [], "faults": {}, "unknown_fields": [], "between": [], "loop_s": None,
        }  # fmt: skip
        self._loop = folder / "loop.jsonl"
        self._loop.touch()
        self._loop.chmod(0o666)
        self.put()

    def put(self, *kinds: str | tuple[str, dict[str, Any]]) -> None:
        """Put these cards into the host, in place of those that were there: kinds, each maybe with columns of its own."""
        self._state["cards"] = []
        for index, given in enumerate(kinds):
            kind, more = (given, {}) if isinstance(given, str) else given
            name, capability, memory_mib = KINDS[kind]
            card = {
                "index": index, "uuid": uuid_of(index), "name": name, "compute_cap": capability,
                "memory.total": memory_mib, "memory.used": 1, "driver_version": DRIVER,
                "pci.bus_id": f"00000000:{index + 2:02X}:00.0", "compute_mode": "Default",
                "mig.mode.current": "[N/A]", "ecc.errors.uncorrected.volatile.total": 0,
                "utilization.gpu": 0, "power.draw": "25.40", "temperature.gpu": 31, **more,
            }  # fmt: skip
            self._state["cards"].append(card)
            (self.folder / card["uuid"]).touch()
            (self.folder / card["uuid"]).chmod(0o666)
        self._write()

    def change(self, index: int, **columns: Any) -> None:
        """Change columns of one card; `_` stands for the dot."""
        names = {name.replace(".", "_"): name for name in self._state["cards"][index]}
        self._state["cards"][index].update({names.get(key, key): value for key, value in columns.items()})
        self._write()

    def fail(self, query: str, fault: str | None) -> None:
        """Let a query (`gpu` or `compute-apps`) fail: hang, nvml, lost, unknown, na; None mends it."""
        self._state["faults"][query] = fault
        self._write()

    def forget(self, *fields: str) -> None:
        """Let nvidia-smi be an old one, which does not know these fields."""
        self._state["unknown_fields"] = list(fields)
        self._write()

    def loop(self, seconds: float | None = None, between: tuple[str, ...] = ()) -> None:
        """Let reports in a loop come after so many seconds, not those asked for; `between` is printed before each."""
        self._state |= {"loop_s": seconds, "between": between}
        self._write()

    def reported(self) -> list[dict[str, Any]]:
        """Return the reports that were made in loops: {"pid", "time", "lines"}."""
        return [json.loads(line) for line in self._loop.read_text().splitlines()]

    def _write(self) -> None:
        part = self.folder / "state.part"
        part.write_text(json.dumps(self._state))
        part.replace(self.folder / "state.json")

    def env(self, *devices: int, **more: str) -> dict[str, str]:
        """Return an environment whose CUDA sees these cards, by UUID; all where none is named."""
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(uuid_of, devices))} if devices else {}
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        return {**kept, **seen, **more}

    def hold(
        self, index: int, memory_mib: int = 500, user: str | None = None, **more: str
    ) -> subprocess.Popen[str]:
        """Start a process that holds a card for good, another user's maybe, `more` in its environment; it is ended with us."""
        child = self.start(index, memory_mib, user, **more)
        assert child.stdout is not None
        assert child.stdout.readline().strip() == uuid_of(index)
        return child

    def leave(self, index: int, **more: str) -> int:
        """Start a process that holds a card for good, and that init adopts; return its pid. It is ended with us."""
        output = self.folder / f"left-{len(self._left)}"
        words = ["/usr/bin/python3", "-B", str(self.folder / "holder.py"), "500"]
        self._left.append(orphan(words, self.env(index, **more), output))
        until(lambda: uuid_of(index) in output.read_text(), "the context")
        return self._left[-1]

    def start(
        self, index: int, memory_mib: int = 500, user: str | None = None, **more: str
    ) -> subprocess.Popen[str]:
        """Start a process that tries to hold a card; its standard error is a pipe too."""
        as_user: list[str] = []
        if user is not None:
            group = str(pwd.getpwnam(user).pw_gid)
            as_user = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--"]
        child = subprocess.Popen(
            [*as_user, "/usr/bin/python3", "-B", self.folder / "holder.py", str(memory_mib)],
            env=self.env(index, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    @contextlib.contextmanager
    def on(self, home: Path) -> Iterator[None]:
        """Put nvidia-smi first on the PATH of a user whose shell is bash, by their `.bashrc`, for as long as this lasts."""
        rc = home / ".bashrc"
        before = rc.read_text() if rc.exists() else None
        rc.write_text(f'export PATH="{self.folder}:$PATH"\n{before or ""}')
        try:
            yield
        finally:
            if before is None:
                rc.unlink()
            else:
                rc.write_text(before)

    def close(self) -> None:
        """End the processes that were started, and remove the folder."""
        for child in self._children:
            child.kill()
            child.communicate()
        for pid in self._left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)
