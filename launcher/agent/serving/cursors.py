"""Find the new content of a run's numbered folders since the client's cursors.

A cursor is (folder, file, offset, SHA-256 of the min(4096, offset) bytes before it). A file that is shorter,
or has another hash, is another file: it is sent again from 0. Small files are sent whole when their hash
changes.

A file that was equal to a cursor is not read again for that cursor until its status changes. A file that was
written just now may change again without a new time stamp, so it is compared every AGAIN_S seconds.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from typing import TYPE_CHECKING, Any, List, Mapping, TypedDict

from ..liveness.run_state import probe_of, state_of
from ..liveness.trouble import trouble_of
from ..record.record_shape import MAX_BYTES
from ..record.rundir import GROWING_FILES, SMALL_FILES, RecordFolder, Run
from ..record.safe_open import UnreadableError, open_regular, read_regular, status_of

if TYPE_CHECKING:
    from ..record.run_records import StateRecord

TAIL = 4096
MAX_ANSWER_BYTES = 8 * 1024 * 1024
SETTLED_S = 1.0
AGAIN_S = 0.2
LATE_S = 5.0
"""The seconds for which a shared disk may show an old size.

NFS shows it for 3 s at least (`acregmin` in nfs(5)), and until the file is opened.
"""
LOOK_S = 0.05
_MAX_KEPT = 1000

_awaited: dict[str, int] = {}
_looks: dict[str, tuple[tuple[Any, ...], float]] = {}
"""By path: the status and the cursor of a file without news, and the time until which it is not read again."""


class RecordPart(TypedDict, total=False):
    """A piece of a file: its path in the record, its offset and its bytes; `whole` replaces the file."""

    path: str
    offset: int
    size: int
    whole: bool


class RunNews(TypedDict):
    """The news of a run: its state, the parts of the payload, its last folder, and two flags.

    `is_full` is set if more follows, `changed` if the state has changed.
    """

    state: StateRecord
    parts: List[RecordPart]
    last: List[int]
    is_full: bool
    changed: bool


def read(run: Run, args: Mapping[str, Any], room: int = MAX_ANSWER_BYTES) -> tuple[RunNews, bytes]:
    """Return (answer, bytes). `args`: cursors by "NNNN/file", `from` (first folder wanted), `state` known.

    After `room` bytes no more files follow. The answer lists parts {path, offset, size} in the order of the
    bytes, with offset 0 for a file that begins again. The state is read before the files: if it is terminal
    and nothing is left to send, the whole run has been sent.
    """
    state = state_of(run)
    state = {**state, "trouble": trouble_of(run, state)}
    is_afar = probe_of(run).writes_afar
    last_sizes = state.pop("sizes", None) or {}
    numbers = run.numbers()  # once, before the files: a folder that appears later belongs to the next answer
    cursors = args.get("cursors") or {}
    parts: list[RecordPart] = []
    pieces: list[bytes] = []
    if args.get("plan") is not True:
        room -= _whole(run.plan, "plan.json", None, parts, pieces)
    for place, number in enumerate(numbers):
        if number < int(args.get("from", 0)):
            continue
        leader = run.folder(number)
        if number == numbers[-1]:
            sizes = last_sizes
        else:
            sizes = _sizes_before(leader, run.folder(numbers[place + 1])) if is_afar else {}
        for folder in (leader, *leader.nodes()):
            prefix = os.path.relpath(folder.path, run.record)
            for name in SMALL_FILES:
                key = "%s/%s" % (prefix, name)
                if room > 0:
                    room -= _whole(folder.path.below(name), key, cursors.get(key), parts, pieces)
            for name in GROWING_FILES:
                key = "%s/%s" % (prefix, name)
                if room > 0:
                    path, cursor = folder.path.below(name), cursors.get(key)
                    if is_afar and folder is leader:
                        _expire(path)
                        _await_size(path, sizes.get(name))
                    room -= _growth(path, key, cursor, room, parts, pieces)
    answer: RunNews = {
        "state": state,
        "parts": parts,
        "last": numbers[-1:],
        "is_full": room <= 0,
        "changed": strip(state) != args.get("state"),
    }
    return answer, b"".join(pieces)


def strip(state: StateRecord) -> list[Any]:
    """Return the parts of a state whose change a client must see."""
    return [state.get("state"), state.get("reason"), state.get("attempt"), bool(state.get("trouble"))]


def _whole(path: str, key: str, known: Any, parts: list[RecordPart], pieces: list[bytes]) -> int:
    try:
        data = read_regular(path, MAX_BYTES)
    except (FileNotFoundError, UnreadableError):
        return 0
    if known is not None and known.get("sha256") == hashlib.sha256(data).hexdigest():
        return 0
    parts.append({"path": key, "offset": 0, "size": len(data), "whole": True})
    pieces.append(data)
    return len(data)


def _growth(path: str, key: str, cursor: Any, room: int, parts: list[RecordPart], pieces: list[bytes]) -> int:
    offset = int(cursor["offset"]) if cursor else 0
    try:
        status = status_of(path)
        size = status.st_size
        look = (status.st_ino, status.st_ctime_ns, size, offset, cursor and cursor.get("sha256"))
        known, until = _looks.get(path, ((), 0.0))
        if known == look and time.time() < until:
            return 0
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            if offset and not _continues(file, offset, str(cursor.get("sha256"))):
                offset = 0
            file.seek(offset)
            data = file.read(room)
    except (FileNotFoundError, UnreadableError):
        return 0
    if data or not cursor or offset != int(cursor["offset"]):  # the local copy needs empty files too
        parts.append({"path": key, "offset": offset, "size": len(data)})
        pieces.append(data)
    else:
        _note(path, look, status.st_ctime)
    return len(data)


def _note(path: str, look: tuple[Any, ...], changed: float) -> None:
    """Record that a file, changed at time `changed`, has no news for a cursor."""
    now = time.time()
    if len(_looks) >= _MAX_KEPT:
        _looks.clear()
    _looks[path] = (look, math.inf if now - changed > SETTLED_S else now + AGAIN_S)


def _expire(path: str) -> None:
    """Let a file that grows on another machine be opened again soon, even if its status seems unchanged."""
    known = _looks.get(path)
    if known is not None and known[1] == math.inf:
        _looks[path] = (known[0], time.time() + AGAIN_S)


def _sizes_before(folder: RecordFolder, following: RecordFolder) -> dict[str, int]:
    """Return the final sizes of a folder's files by its last writer, if the next folder has just begun.

    The client will not ask for this folder again, and a shared disk may still show its old content, even its
    old state. An agent that was killed has left no sizes.
    """
    try:
        age_s = time.time() - os.lstat(following.attempt).st_mtime
    except FileNotFoundError:
        age_s = 0.0
    deadline = time.monotonic() + LATE_S
    while age_s < LATE_S and time.monotonic() < deadline:
        sizes = folder.read_state().get("sizes")
        if isinstance(sizes, dict):
            return sizes
        time.sleep(LOOK_S)
    return {}


def _await_size(path: str, size: Any) -> None:
    """Wait until a file has the size that its writer on another machine reported; once for each end of a run.

    A shared disk shows an old size for a while: FUSE for a second, even while the file is read.
    """
    if not isinstance(size, int) or _awaited.get(path) == size:
        return
    _looks.pop(path, None)
    _awaited[path] = size
    if len(_awaited) > _MAX_KEPT:
        del _awaited[next(iter(_awaited))]  # the oldest
    deadline = time.monotonic() + LATE_S
    while time.monotonic() < deadline:
        if _size_when_opened(path) >= size:
            return
        time.sleep(LOOK_S)


def _size_when_opened(path: str) -> int:
    """Return the size of a file, 0 if it is missing. NFS asks its server when the file is opened."""
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            return os.fstat(file.fileno()).st_size
    except (FileNotFoundError, UnreadableError):
        return 0


def _continues(file: Any, offset: int, sha256: str) -> bool:
    before = min(TAIL, offset)
    file.seek(offset - before)
    return hashlib.sha256(file.read(before)).hexdigest() == sha256
