"""The runs that this user has moved to another host: `moved.json` beside a run's entry in the index.

A run whose old host must still be informed has a file of its name in the index's `.abandoned`. The file is
made before the decision, so that no run is missed; without a decision it has no effect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from launcher.base.json_file import read_json
from launcher.base.whole_file import write_durably
from launcher.copy import index
from launcher.copy.mirror import LocalCopy, mirror_of
from launcher.copy.move_record import MoveRecord
from launcher.copy.run_id import RUN_ID
from launcher.errors import RunError
from launcher.rental import records
from launcher.values.record import Parent
from launcher.values.reported.answers import MovedTo

NAME = "moved.json"
PENDING = ".abandoned"


def departure_of(mirror: LocalCopy) -> MoveRecord | None:
    """Return the record of a run's move; None if it was not moved, or if a move was only intended."""
    departure = intention_of(mirror)
    is_decided = departure is not None and (departure.abandoned is not None or departure.settled is not None)
    return departure if is_decided else None


def words_of(mirror: LocalCopy) -> str | None:
    """Return the successor and its host in words; None if this client has not moved the run."""
    departure = departure_of(mirror)
    return None if departure is None else f"continues as {departure.short} on {departure.host}"


def intention_of(mirror: LocalCopy) -> MoveRecord | None:
    """Return the record of a move, even of one that broke off. The successor may or may not exist."""
    try:
        return MoveRecord.lenient(read_json(_file(mirror)))
    except ValidationError:
        return None


def check_readable(mirror: LocalCopy) -> None:
    """Raise RunError if the run may have been moved, but the record of the move cannot be read."""
    if _is_unreadable(mirror):
        raise RunError(
            f"{_file(mirror)} cannot be read: a run that continues {mirror.run} may have begun\n"
            f"  look for it   launch ps     if none is listed, remove that file"
        )


def _is_unreadable(mirror: LocalCopy) -> bool:
    return intention_of(mirror) is None and os.path.lexists(_file(mirror))


def has_begun(departure: MoveRecord) -> bool:
    """Return whether the index has the successor: it has begun, or was about to."""
    return index.knows(departure.run)


def still_training(mirror: LocalCopy, parent: Parent | None) -> str | None:
    """Return a warning if a run's parent may still train: this client abandoned it and has not reached its host since."""
    if parent is None or not RUN_ID.fullmatch(parent.run):
        return None
    before = mirror_of(parent.run, index.copies_of(parent.run))
    departure = departure_of(before)
    if departure is None or not departure.is_open or departure.run != mirror.run:
        return None
    if records.is_gone(before.run):
        return None
    return f"its parent {before.short} may still train on {before.host().name}, which has not answered since"


def successor_of(mirror: LocalCopy) -> str | None:
    """Return the run that continues this run elsewhere, if this client moved it and the successor has begun."""
    departure = intention_of(mirror)
    return departure.run if departure is not None and has_begun(departure) else None


def elsewhere(mirror: LocalCopy) -> str | None:
    """Return where this client has moved a run, and the next command; None if it has not."""
    departure = intention_of(mirror)
    if departure is None:
        return None
    if departure.abandoned is None:
        return moved_words(mirror, departure.to) if has_begun(departure) else None
    words = f"{mirror.run} was abandoned on {mirror.host().name}, and continues on {departure.host} as {departure.run}"
    if has_begun(departure):
        return f"{words}\n  that run   launch attach {departure.short}"
    return f"{words}, which has not begun\n  begin it   {beginning(mirror, departure)}"


def moved_words(mirror: LocalCopy, moved: MovedTo) -> str:
    """Return where a moved run continues, and the next command."""
    words = f"{mirror.run} was moved to {moved.host}, and continues as {moved.run}"
    return f"{words}\n  that run   launch attach {moved.run.rpartition('-')[2]}"


def beginning(mirror: LocalCopy, departure: MoveRecord) -> str:
    """Return the command that starts a successor that has not begun."""
    flag = " --abandon" if departure.is_open else ""
    return f"launch recover {mirror.short} --host {departure.host}{flag}"


def intend(mirror: LocalCopy, target: MovedTo, given_up: str | None = None) -> MoveRecord:
    """Record the intended successor of a run, before its old host, which is reachable, is informed.

    `given_up` is an earlier successor that never began. Raises RunError if the disk refuses.
    """
    return _change(mirror, lambda before: _successor(before, target, given_up))


def abandon(mirror: LocalCopy, target: MovedTo, given_up: str | None = None) -> MoveRecord:
    """Record that a run continues elsewhere although its host does not know; an earlier decision remains.

    `given_up` is an earlier successor that never began, and is replaced. Raises RunError if the disk refuses.
    """

    def next_one(before: MoveRecord | None) -> MoveRecord:
        stands = before is not None and (before.is_open or before.root == target.root)
        kept = before if before is not None and stands and before.run != given_up else None
        decided = kept or _successor(before, target, given_up)
        return decided.model_copy(update={"abandoned": decided.abandoned or time.time()})

    return _change(mirror, next_one, is_pending=True)


def _successor(before: MoveRecord | None, target: MovedTo, given_up: str | None) -> MoveRecord:
    """Return the record of a new successor; it keeps the notes about informing the old host."""
    never_began = (*(before.given_up if before is not None else ()), *([given_up] if given_up else ()))
    heard = {"abandoned": before.abandoned, "told": before.told} if before is not None else {}
    return MoveRecord(**dict(target), **heard, given_up=tuple(dict.fromkeys(never_began)))


def note(mirror: LocalCopy, **news: object) -> MoveRecord:
    """Add new facts to the record of a move.

    Raises RunError if the disk refuses, or if the record is missing.
    """

    def next_one(before: MoveRecord | None) -> MoveRecord:
        if before is None:
            raise FileNotFoundError(f"{_file(mirror)}")
        return before.model_copy(update=news)

    departure = _change(mirror, next_one)
    if not departure.is_open:
        forget(mirror)
    return departure


def pending() -> list[str]:
    """Return the runs whose hosts may still have to be informed.

    It only lists one folder, which seldom exists.
    """
    try:
        return sorted(filter(RUN_ID.fullmatch, os.listdir(index.folder() / PENDING)))
    except OSError:
        return []


def forget(mirror: LocalCopy) -> None:
    """Remove the mark that a host must be informed, unless it still must be.

    Raises RunError if the disk refuses.
    """
    if not index.knows(mirror.run):
        _mark(mirror).unlink(missing_ok=True)
        return
    with (
        mirror.disk_errors(_mark(mirror)),
        index.alone(mirror.run, "moved"),
    ):  # another command may be about to decide
        departure = departure_of(mirror)
        if not _is_unreadable(mirror) and (departure is None or not departure.is_open):
            _mark(mirror).unlink(missing_ok=True)


def _file(mirror: LocalCopy) -> Path:
    return index.place(mirror.run) / NAME


def _mark(mirror: LocalCopy) -> Path:
    return index.folder() / PENDING / mirror.run


def _change(
    mirror: LocalCopy, next_one: Callable[[MoveRecord | None], MoveRecord], *, is_pending: bool = False
) -> MoveRecord:
    """Replace the record durably, one client at a time; return the new one.

    `is_pending`: a host must be informed.
    """
    path = _file(mirror)
    with mirror.disk_errors(path), index.alone(mirror.run, "moved"):
        check_readable(mirror)
        if is_pending:
            _mark(mirror).parent.mkdir(parents=True, exist_ok=True)
            _mark(mirror).touch()
        before = intention_of(mirror)
        departure = next_one(before)
        if departure != before:
            write_durably(path, departure.model_dump_json().encode())
        return departure
