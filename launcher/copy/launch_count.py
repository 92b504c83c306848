"""The count of this user's launches, kept in the index: it orders them even if the clock was changed."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

FILE = ".launches"


def next_number(folder: Path, recount: Callable[[], int]) -> int:
    """Return the number of a new launch.

    If the count is missing, `recount` returns the last one. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / FILE).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read(32).strip()
        number = (int(text) if text.isdigit() else recount()) + 1
        file.seek(0)
        file.truncate()
        file.write(b"%d\n" % number)
    return number
