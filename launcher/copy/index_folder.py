"""The index folder and its entries as plain JSON, read within milliseconds for shell completion.

The count of this user's launches is kept here too: it orders them even if the clock was changed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from launcher.base.json_file import JsonObject, read_json
from launcher.copy.run_id import RUN_ID
from launcher.errors import RunError

FILE = "run.json"


def folder() -> Path:
    """Return the folder of the index."""
    from platformdirs.unix import Unix  # `launch --help` starts without it

    return Unix("launch").user_data_path / "runs"


def place(run: str) -> Path:
    """Return the folder of this user's records of a run. Raises ValueError if `run` is not a run id."""
    if not RUN_ID.fullmatch(run):
        raise ValueError(f"{run!r} is not a run id")
    return folder() / run


def runs() -> dict[str, int]:
    """Return the ids of all runs, each with the modification time of its folder in ns.

    Raises RunError if the index cannot be read.
    """
    found = {}
    try:
        with os.scandir(folder()) as entries:
            for entry in entries:
                if RUN_ID.fullmatch(entry.name):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{folder()}, the index of your runs: {error.strerror}") from error
    return found


def knows(run: str) -> bool:
    """Return whether the index has a file for a run. The file may be damaged."""
    return RUN_ID.fullmatch(run) is not None and (folder() / run / FILE).is_file()


def read(run: str) -> JsonObject:
    """Return a run's entry as it is written; empty if it is missing or damaged."""
    return read_json(place(run) / FILE)


COUNT_FILE = ".launches"


def next_number(folder: Path, recount: Callable[[], int]) -> int:
    """Return the number of a new launch.

    If the count is missing, `recount` returns the number of the last launch. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / COUNT_FILE).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read(32).strip()
        number = (int(text) if text.isdigit() else recount()) + 1
        file.seek(0)
        file.truncate()
        file.write(b"%d\n" % number)
    return number
