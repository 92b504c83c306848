"""The count of this client's launches, kept beside its mirrors: it orders them, even if the clock was changed."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

FILE = ".launches"


def last_number(runs: Path) -> int:
    """Return the number of the last launch; 0 if it is not known."""
    try:
        text = (runs / FILE).read_bytes()[:32].strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def next_number(runs: Path, recount: Callable[[], int]) -> int:
    """Return the number of a new launch; `recount` returns the last one where the count is missing. Raises OSError."""
    with (runs / FILE).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read(32).strip()
        number = (int(text) if text.isdigit() else recount()) + 1
        file.seek(0)
        file.truncate()
        file.write(b"%d\n" % number)
    return number
