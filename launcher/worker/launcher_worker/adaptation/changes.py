"""The hook's report of changed and unchanged parts of a script: printed once each, recorded as evidence."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any, List, Set

from ..channel import rank, send
from ..shield import SOURCE
from ..values import knobs

MOST = 50
"""The limit of lines: a script that makes a thousand models gets fifty, because more add no information."""
_LIBRARIES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"], os.path.dirname(__file__))


class ChangeReport:
    """The lines printed so far."""

    def __init__(self) -> None:
        self._said: Set[str] = set()
        self._lines: List[str] = []

    def change(self, what: str, name: str, before: Any, after: Any) -> None:
        """Report that an argument has another value than the script gave it; skip equal values."""
        if before != after:
            self._say(f"{what}: {name} {_text(before)} -> {_text(after)}")

    def add(self, what: str) -> None:
        """Report an addition to the script."""
        self._say(what)

    def leave(self, what: str) -> None:
        """Report a part that cannot be adapted, with the script's line that uses it."""
        place = _place()
        self._say(f"left as it is: {what}{f' ({place})' if place else ''}")

    def _say(self, line: str) -> None:
        if line in self._said or len(self._said) >= MOST:
            return
        self._said.add(line)
        knobs().announce()
        if rank() == 0:
            print(f"adapted: {line}", file=sys.stderr, flush=True)
            self._lines.append(line)
            send("evidence", values={"adapted": line}, source=SOURCE)


changes = ChangeReport()


def _place() -> str:
    """Return the line of the script in the call stack, as `train.py:12`; empty if only libraries are in it."""
    frame = sys._getframe(1)  # noqa: SLF001  # the only way to a caller's line without a traceback
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((*_LIBRARIES, "<")) and f"{os.sep}launcher_worker{os.sep}" not in path:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _text(value: Any) -> str:
    return str(value).replace("torch.", "")
