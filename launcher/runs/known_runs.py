"""The runs of this client as its mirrors last knew them, read in milliseconds: for a shell that completes a word."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcher.runs.json_file import read_json
from launcher.runs.run_id import RUN_ID, find
from launcher.values.states import in_todays_words, is_terminal

NEWEST = 48
"""Runs whose records are read at most. Typing more of an older one's id brings it among them."""
_LATEST = 1e12


class KnownRun(NamedTuple):
    """A run and its last state that was fetched, None before the first; `launched` is in seconds since 1970.

    `order` is the number of the launch, 0 for one of another client; `is_freed`: it was removed from its host.
    """

    run: str
    state: str | None
    launched: float
    order: int
    is_freed: bool

    @property
    def short(self) -> str:
        """The last part of the id."""
        return self.run.rpartition("-")[2]

    @property
    def name(self) -> str:
        """The run's name, as far as its id has it."""
        return self.run.partition("-")[2].rpartition("-")[0]

    @property
    def has_ended(self) -> bool:
        """Whether no further attempt follows. A run that was removed from its host has ended."""
        return self.is_freed or is_terminal(self.state)


def known_runs(folder: Path, is_wanted: Callable[[str], bool]) -> list[KnownRun]:
    """Return the newest runs in a folder whose ids are wanted, the latest launched first; no more than NEWEST.

    Raises OSError if there is no such folder, or it cannot be read.
    """
    runs = [run for run in _ids(folder) if is_wanted(run)]
    runs.sort(key=lambda run: (_day(run), _changed(folder, run)), reverse=True)
    known = [one for run in runs[:NEWEST] if (one := _known(folder / run)) is not None]
    return sorted(known, key=lambda one: (one.order, one.launched, one.run), reverse=True)


def named(folder: Path, word: str) -> str:
    """Return the run that a word names; `last` is the latest launched. Raises OSError, UnknownNameError or UsageError."""
    runs = [known.run for known in known_runs(folder, _any)[:1]] if word == "last" else _ids(folder)
    return find(word, runs)


def _any(_run: str) -> bool:
    return True


def _ids(folder: Path) -> list[str]:
    return [run for run in os.listdir(folder) if RUN_ID.fullmatch(run)]


def _day(run: str) -> str:
    """Return the date in a run's id. The form that was given until 2026-11-22 has no year: it is older than any other."""
    day = run.partition("-")[0]
    return day if len(day) == 6 else ""


def _changed(folder: Path, run: str) -> float:
    try:
        return os.stat(f"{folder}/{run}/client.json").st_mtime
    except OSError:
        return 0.0


def _known(folder: Path) -> KnownRun | None:
    """Return a run from its mirror; None if nothing says whose it is."""
    record = read_json(folder / "client.json")
    if not record:
        return None
    launched, order = record.get("launched"), record.get("order")
    return KnownRun(
        folder.name,
        _state(folder),
        launched if isinstance(launched, float) and 0.0 <= launched < _LATEST else 0.0,
        order if isinstance(order, int) else 0,
        "freed" in record,
    )


def _state(folder: Path) -> str | None:
    try:
        numbers = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return None
    newest = max(numbers, key=int, default="0001")
    state = in_todays_words(read_json(folder / newest / "state.json").get("state"))
    return state if isinstance(state, str) else None
