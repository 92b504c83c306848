"""The runs that this user has moved to another host: `moved.json` beside a run's entry in the index.

While a run's old host must still be informed, the folder `.abandoned` of the index has a file with the run's
name. The file is made before `moved.json` is written, so that no run is missed; without `moved.json` it has no
effect.
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
from launcher.copy.local_copy import LocalCopy, local_copy_of
from launcher.copy.run_id import RUN_ID
from launcher.errors import RunError
from launcher.rental import records
from launcher.values.base import Record
from launcher.values.record import Parent
from launcher.values.reported.answers import MovedTo


class MoveRecord(Record):
    """The run that continues elsewhere, its host as this client names it, and the id of that host's root.

    `abandoned` is the time of a move during which the old host was unreachable, else null. At the next contact
    such a host must be informed of the move. `told` is the time when it was informed, `settled` the time when its
    run was dead and its record named the successor. `also` is another successor that the old host had already
    recorded. `given_up` are earlier successors of this client that never began. Times are in seconds since 1970.
    """

    run: str
    host: str
    root: str
    abandoned: float | None = None
    told: float | None = None
    settled: float | None = None
    also: str | None = None
    given_up: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The last part of the successor's id, enough to name it."""
        return self.run.rpartition("-")[2]

    @property
    def to(self) -> MovedTo:
        """The entry for the old host's record."""
        return MovedTo(run=self.run, host=self.host, root=self.root)

    @property
    def is_open(self) -> bool:
        """Whether the old host, which was not reachable, may still train."""
        return self.abandoned is not None and self.settled is None


NAME = "moved.json"
PENDING = ".abandoned"


def recorded_move_of(local_copy: LocalCopy) -> MoveRecord | None:
    """Return the record of a run's move; None if it was not moved, or if a move was only intended."""
    recorded_move = intention_of(local_copy)
    is_decided = recorded_move is not None and (
        recorded_move.abandoned is not None or recorded_move.settled is not None
    )
    return recorded_move if is_decided else None


def words_of(local_copy: LocalCopy) -> str | None:
    """Return the successor and its host in words; None if this client has not moved the run."""
    recorded_move = recorded_move_of(local_copy)
    return None if recorded_move is None else f"continues as {recorded_move.short} on {recorded_move.host}"


def intention_of(local_copy: LocalCopy) -> MoveRecord | None:
    """Return the record of a move, even of an unfinished one. The successor may or may not exist."""
    try:
        return MoveRecord.lenient(read_json(_file(local_copy)))
    except ValidationError:
        return None


def check_readable(local_copy: LocalCopy) -> None:
    """Raise RunError if the run may have been moved, but the record of the move cannot be read."""
    if _is_unreadable(local_copy):
        raise RunError(
            f"{_file(local_copy)} cannot be read: a run that continues {local_copy.run} may have begun\n"
            f"  look for it   launch ps     if none is listed, remove that file"
        )


def _is_unreadable(local_copy: LocalCopy) -> bool:
    return intention_of(local_copy) is None and os.path.lexists(_file(local_copy))


def has_begun(recorded_move: MoveRecord) -> bool:
    """Return whether the index has the successor. If so, the successor has begun or was about to begin."""
    return index.knows(recorded_move.run)


def still_training(local_copy: LocalCopy, parent: Parent | None) -> str | None:
    """Return a warning if a run's parent may still train: this client abandoned it and has not reached its host since."""
    if parent is None or not RUN_ID.fullmatch(parent.run):
        return None
    before = local_copy_of(parent.run, index.copies_of(parent.run))
    recorded_move = recorded_move_of(before)
    if recorded_move is None or not recorded_move.is_open or recorded_move.run != local_copy.run:
        return None
    if records.is_gone(before.run):
        return None
    return f"its parent {before.short} may still train on {before.host().name}, which has not answered since"


def successor_of(local_copy: LocalCopy) -> str | None:
    """Return the run that continues this run elsewhere, if this client moved it and the successor has begun."""
    recorded_move = intention_of(local_copy)
    return recorded_move.run if recorded_move is not None and has_begun(recorded_move) else None


def elsewhere(local_copy: LocalCopy) -> str | None:
    """Return a message with the new place of a moved run and the next command; None if this client has not moved it."""
    recorded_move = intention_of(local_copy)
    if recorded_move is None:
        return None
    if recorded_move.abandoned is None:
        return moved_words(local_copy, recorded_move.to) if has_begun(recorded_move) else None
    words = f"{local_copy.run} was abandoned on {local_copy.host().name}, and continues on {recorded_move.host} as {recorded_move.run}"
    if has_begun(recorded_move):
        return f"{words}\n  that run   launch attach {recorded_move.short}"
    return f"{words}, which has not begun\n  begin it   {beginning(local_copy, recorded_move)}"


def moved_words(local_copy: LocalCopy, moved: MovedTo) -> str:
    """Return a message with the new place of a moved run, and the next command."""
    words = f"{local_copy.run} was moved to {moved.host}, and continues as {moved.run}"
    return f"{words}\n  that run   launch attach {moved.run.rpartition('-')[2]}"


def beginning(local_copy: LocalCopy, recorded_move: MoveRecord) -> str:
    """Return the command that starts a successor that has not begun."""
    flag = " --abandon" if recorded_move.is_open else ""
    return f"launch recover {local_copy.short} --host {recorded_move.host}{flag}"


def intend(local_copy: LocalCopy, target: MovedTo, given_up: str | None = None) -> MoveRecord:
    """Record the intended successor of a run, before its old host, which is reachable, is informed.

    `given_up` is an earlier successor that never began. Raises RunError on a disk error.
    """
    return _change(local_copy, lambda before: _successor(before, target, given_up))


def abandon(local_copy: LocalCopy, target: MovedTo, given_up: str | None = None) -> MoveRecord:
    """Record that a run continues elsewhere without its host's knowledge. An earlier such record remains.

    `given_up` is an earlier successor that never began, and is replaced. Raises RunError on a disk error.
    """

    def next_record(before: MoveRecord | None) -> MoveRecord:
        stands = before is not None and (before.is_open or before.root == target.root)
        kept = before if before is not None and stands and before.run != given_up else None
        decided = kept or _successor(before, target, given_up)
        return decided.model_copy(update={"abandoned": decided.abandoned or time.time()})

    return _change(local_copy, next_record, is_pending=True)


def _successor(before: MoveRecord | None, target: MovedTo, given_up: str | None) -> MoveRecord:
    """Return the record of a new successor, with the previous record's values about the old host."""
    never_began = (*(before.given_up if before is not None else ()), *([given_up] if given_up else ()))
    heard = {"abandoned": before.abandoned, "told": before.told} if before is not None else {}
    return MoveRecord(**dict(target), **heard, given_up=tuple(dict.fromkeys(never_began)))


def note(local_copy: LocalCopy, **news: object) -> MoveRecord:
    """Add new facts to the record of a move.

    Raises RunError on a disk error, or if the record is missing.
    """

    def next_record(before: MoveRecord | None) -> MoveRecord:
        if before is None:
            raise FileNotFoundError(f"{_file(local_copy)}")
        return before.model_copy(update=news)

    recorded_move = _change(local_copy, next_record)
    if not recorded_move.is_open:
        forget(local_copy)
    return recorded_move


def pending() -> list[str]:
    """Return the runs whose hosts may still have to be informed.

    This lists a single folder, which seldom exists.
    """
    try:
        return sorted(filter(RUN_ID.fullmatch, os.listdir(index.folder() / PENDING)))
    except OSError:
        return []


def forget(local_copy: LocalCopy) -> None:
    """Remove the mark that a host must be informed, unless the record still requires it.

    Raises RunError on a disk error.
    """
    if not index.knows(local_copy.run):
        _mark(local_copy).unlink(missing_ok=True)
        return
    with (
        local_copy.disk_errors(_mark(local_copy)),
        index.alone(local_copy.run, "moved"),
    ):  # another command may be about to record a move
        recorded_move = recorded_move_of(local_copy)
        if not _is_unreadable(local_copy) and (recorded_move is None or not recorded_move.is_open):
            _mark(local_copy).unlink(missing_ok=True)


def _file(local_copy: LocalCopy) -> Path:
    return index.place(local_copy.run) / NAME


def _mark(local_copy: LocalCopy) -> Path:
    return index.folder() / PENDING / local_copy.run


def _change(
    local_copy: LocalCopy, next_record: Callable[[MoveRecord | None], MoveRecord], *, is_pending: bool = False
) -> MoveRecord:
    """Replace the record durably, one client at a time; return the new one.

    `is_pending`: a host must be informed.
    """
    path = _file(local_copy)
    with local_copy.disk_errors(path), index.alone(local_copy.run, "moved"):
        check_readable(local_copy)
        if is_pending:
            _mark(local_copy).parent.mkdir(parents=True, exist_ok=True)
            _mark(local_copy).touch()
        before = intention_of(local_copy)
        recorded_move = next_record(before)
        if recorded_move != before:
            write_durably(path, recorded_move.model_dump_json().encode())
        return recorded_move
