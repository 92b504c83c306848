"""This user's runs and their last known states, read from local copies within milliseconds for shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from launcher.copy import index_folder
from launcher.copy.run_files import RunFiles
from launcher.copy.run_id import find
from launcher.copy.runs_folder import folder_with, ids_here
from launcher.errors import UnknownNameError
from launcher.values.states import in_todays_words, is_terminal

_LATEST = 1e12
NEWEST = 48
"""The maximum number of runs whose records are read. Typing more of an id includes older runs."""


class KnownRun(NamedTuple):
    """A run and its last fetched state, None if no state was fetched; `launched` is in seconds since 1970.

    `order` is the number of the launch, 0 for a run of another client. `is_freed`: it was removed from its
    host.
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
        """The run's name, as shortened in its id."""
        return self.run.partition("-")[2].rpartition("-")[0]

    @property
    def has_ended(self) -> bool:
        """Whether no further attempt follows. A run that was removed from its host has ended."""
        return self.is_freed or is_terminal(self.state)


def known_runs(is_wanted: Callable[[str], bool]) -> list[KnownRun]:
    """Return the newest runs whose ids are wanted, at most NEWEST, the latest launched first.

    Only runs with a local copy in the runs folder are considered; if none of them is wanted, all runs of this
    user. Raises OSError for a folder that cannot be read.
    """
    entered = index_folder.runs()
    here = ids_here()
    runs = [run for run in here if is_wanted(run)] or [run for run in entered if is_wanted(run)]
    runs.sort(key=lambda run: (_day(run), entered.get(run, 0)), reverse=True)
    known = map(_known, runs[:NEWEST])
    return sorted(known, key=lambda one: (one.order, one.launched, one.run), reverse=True)


def _day(run: str) -> str:
    """Return the date in a run's id. Ids made before 2026-11-22 have no year, and count as the oldest."""
    day = run.partition("-")[0]
    return day if len(day) == 6 else ""


def files_of(run: str) -> RunFiles:
    """Return the files of a run's local copy, in the same folder as `local_copy_of`."""
    return RunFiles(folder_with(run, _other_folders(run)) / run)


def _other_folders(run: str) -> Iterator[str]:
    """Yield the folders that may hold a local copy of a run.

    The index is read only if the first folder is requested.
    """
    copies = index_folder.read(run).get("copies")
    yield from (one for one in copies if isinstance(one, str)) if isinstance(copies, list) else ()


def named(word: str) -> str:
    """Return the run that a word names; `last` is the latest launched.

    Raises OSError, UnknownNameError or UsageError.
    """
    runs = [known.run for known in known_runs(_any)[:1]] if word == "last" else ids_here()
    try:
        return find(word, runs)
    except UnknownNameError:
        return find(word, sorted(index_folder.runs()))


def _any(_run: str) -> bool:
    return True


def _known(run: str) -> KnownRun:
    entry, files = index_folder.read(run), files_of(run)
    numbers = files.numbered()
    state = in_todays_words(files.read_json(f"{numbers[-1]}/state.json").get("state")) if numbers else None
    launched, order = entry.get("launched"), entry.get("order")
    return KnownRun(
        run,
        state if isinstance(state, str) else None,
        launched if isinstance(launched, float) and 0.0 <= launched < _LATEST else 0.0,
        order if isinstance(order, int) else 0,
        entry.get("freed") is not None,
    )
