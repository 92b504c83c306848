"""A witness that looks for a word in all command lines of this machine, and in the variables of processes on its machines."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class KeyWitness:
    """Looks again and again, by a thread, until it is left. `argv` and `variables` are where it has seen the word."""

    def __init__(self, word: str) -> None:
        """Look for this word."""
        self.argv: set[str] = set()
        self.variables: set[str] = set()
        self.looks = 0
        self._word = word.encode()
        self._own_pids = os.readlink("/proc/self/ns/pid")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.005):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    self._look(process)
            self.looks += 1

    def _look(self, process: Path) -> None:
        words = (process / "cmdline").read_bytes()
        said = words.replace(b"\0", b" ").decode(errors="replace").strip()
        if self._word in words:
            self.argv.add(said)
        if (
            os.readlink(process / "ns" / "pid") != self._own_pids
            and self._word in (process / "environ").read_bytes()
        ):
            self.variables.add(said)
