"""Print a run's record as frames (frame.py) while the run writes it, in a thread that blocks no other work.

The rate is limited for a remote reader, the total to a budget. The outputs contain the rest.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from typing import Callable, Deque, Dict, List, NamedTuple, Set, Tuple

from ..record.frame import APPEND, FRAME, GROWING_FILES, MAX_BYTES, NOTE, REPLACE, Frame, RecordPath
from ..record.rundir import Run
from ..record.safe_open import open_regular, read_regular, status_of

ROUND_S = 2.0
ROUND_BYTES = 64 << 10
PIECE_BYTES = 32 << 10
BUDGET_BYTES = 64 << 20
LAST_BYTES = 4 << 20
"""The most bytes of growing files in the last round."""
HEARTBEAT_S = 10.0
LOOK_S = 0.2
BEFORE, AFTER = ("sealed.json", "attempt.json", "precision.json"), ("state.json", "heartbeat")
"""The small files printed before and after the growing ones: a state follows the events that led to it."""
AT_ONCE = ("attempt.json", "state.json")
_NEVER = float("-inf")


class Backlog(NamedTuple):
    """A file that has grown: its path, the bytes printed so far, and its size."""

    path: RecordPath
    printed: int
    size: int


class RecordFeed:
    """Turn changes in the numbered folders above `after` into frames for `write`."""

    def __init__(
        self, run: Run, after: int, write: Callable[[bytes], None], budget: int = BUDGET_BYTES
    ) -> None:
        """Start; nothing has been printed yet."""
        self._run = run
        self._after = after
        self._write = write
        self._left = budget
        self._tokens = float(ROUND_BYTES)
        self._counted_s = time.monotonic()
        self._round_s = _NEVER
        self._beaten_s: Dict[int, float] = {}
        self._is_last_round = False
        self._sequence = 0
        self._marks: Dict[RecordPath, Tuple[int, int, int]] = {}
        self._printed: Dict[RecordPath, int] = {}
        self._done: Set[int] = set()
        self._has_ended = False

    def turn(self) -> None:
        """Print a round if one is due, or if a state or an attempt is new. Raises OSError."""
        if time.monotonic() - self._round_s >= ROUND_S or self._has_urgent():
            self._round(self._allowance())

    def finish(self) -> None:
        """Print the last round. Raises OSError."""
        self._is_last_round = True
        self._round(LAST_BYTES)

    def _has_urgent(self) -> bool:
        last = self._run.last()
        if last is None or last.number <= self._after:
            return False
        return any(self._is_new(RecordPath(last.number, name)) for name in AT_ONCE)

    def _allowance(self) -> int:
        now_s = time.monotonic()
        self._tokens += (now_s - self._counted_s) * ROUND_BYTES / ROUND_S
        self._tokens = min(self._tokens, float(ROUND_BYTES))
        self._counted_s = now_s
        return int(self._tokens)

    def _round(self, allowance: int) -> None:
        self._round_s = time.monotonic()
        numbers = [number for number in self._run.numbers() if number > self._after]
        for number in numbers:
            if number not in self._done:
                is_over = self._is_last_round or number != numbers[-1]
                allowance -= self._print_folder(number, allowance, is_over=is_over)
                if number < numbers[-1] - 1 and not self._backlog(number):
                    self._done.add(number)

    def _print_folder(self, number: int, allowance: int, *, is_over: bool) -> int:
        """Print a folder's new contents; return how many bytes of growing files were printed."""
        paths = [RecordPath(number, name) for name in AFTER if is_over or self._is_due(number, name)]
        after = [(path, self._read_new(path)) for path in paths]
        for name in BEFORE:
            path = RecordPath(number, name)
            self._replace(path, self._read_new(path))
        printed = self._print_growing(number, allowance)
        for path, found in after:  # as read before the growing files were printed
            self._replace(path, found)
        return printed

    # small files

    def _path_of(self, path: RecordPath) -> str:
        return self._run.folder(path.number).path.below(path.name)

    def _mark_of(self, path: RecordPath) -> Tuple[int, int, int] | None:
        try:
            status = status_of(self._path_of(path))
        except OSError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _is_new(self, path: RecordPath) -> bool:
        mark = self._mark_of(path)
        return mark is not None and mark != self._marks.get(path)

    def _is_due(self, number: int, name: str) -> bool:
        """Whether a file may be printed again: heartbeats of a running attempt are printed seldom."""
        if name != "heartbeat":
            return True
        now_s = time.monotonic()
        if now_s - self._beaten_s.get(number, _NEVER) < HEARTBEAT_S:
            return False
        self._beaten_s[number] = now_s
        return True

    def _read_new(self, path: RecordPath) -> bytes | None:
        """Return the contents of a small file that has changed since it was printed; None for any other."""
        mark = self._mark_of(path)
        if mark is None or mark == self._marks.get(path):
            return None
        self._marks[path] = mark
        try:
            return read_regular(self._path_of(path), MAX_BYTES)
        except OSError:  # the job has put something else in its place, or it is too large
            return None

    def _replace(self, path: RecordPath, data: bytes | None) -> None:
        if data is not None:
            self._print(REPLACE, path, 0, data)

    # files that grow

    def _backlog(self, number: int) -> List[Backlog]:
        """Return the unprinted parts of a folder's growing files."""
        found = []
        for name in GROWING_FILES:
            path = RecordPath(number, name)
            mark = self._mark_of(path)
            printed = self._printed.get(path, 0)
            if mark is not None and mark[1] > printed:
                found.append(Backlog(path, printed, mark[1]))
        return found

    def _print_growing(self, number: int, allowance: int) -> int:
        """Print the growth of a folder's files; return the number of bytes.

        The files share the allowance equally; bytes that a file does not need go to the others.
        """
        waiting = sorted(self._backlog(number), key=lambda one: one.size - one.printed)
        total = 0
        for place, backlog in enumerate(waiting):
            share = max(0, allowance - total) // (len(waiting) - place)
            total += self._append(backlog, min(share, self._left))
        if waiting and self._left <= 0:
            self._end_live_view()
        return total

    def _append(self, backlog: Backlog, share: int) -> int:
        """Print at most `share` bytes of a file; return how many were printed."""
        offset = backlog.printed
        end = min(backlog.size, offset + share)
        if offset >= end:
            return 0
        try:
            descriptor = open_regular(self._path_of(backlog.path), os.O_RDONLY)
        except OSError:  # the job has put something else in its place
            return 0
        try:
            while offset < end:
                data = os.pread(descriptor, min(PIECE_BYTES, end - offset), offset)
                if not data:  # it was truncated
                    break
                self._print(APPEND, backlog.path, offset, data)
                offset += len(data)
        finally:
            os.close(descriptor)
        printed = offset - backlog.printed
        self._printed[backlog.path] = offset
        self._left -= printed
        self._tokens -= printed
        return printed

    def _end_live_view(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._write(NOTE.encode() + b"enough was printed: what follows comes with the outputs\n")

    def _print(self, mode: str, path: RecordPath, offset: int, data: bytes) -> None:
        self._sequence += 1
        self._write(Frame(self._sequence, mode, path, offset, data).line())


class FramePrinter:
    """The thread that prints a run's frames, and lines for people, to a descriptor."""

    def __init__(self, run: Run, after: int, descriptor: int = 1) -> None:
        """Start the thread."""
        self._descriptor = descriptor
        self._feed = RecordFeed(run, after, self._write)
        self._words: Deque[str] = collections.deque()
        self._ended = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        self._thread.start()

    def say(self, words: str) -> None:
        """Print a line for people, without waiting for it."""
        self._words.append(words)

    def finish(self, wait_s: float) -> bool:
        """Print the rest; return whether that was done within `wait_s` seconds."""
        self._ended.set()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._say_all()
            with contextlib.suppress(OSError):  # its job may have damaged the record
                self._feed.turn()
        with contextlib.suppress(OSError):
            self._feed.finish()
        self._say_all()

    def _say_all(self) -> None:
        while self._words:
            self._write(line_of(self._words.popleft()))

    def _write(self, line: bytes) -> None:
        if not self._is_closed:
            self._is_closed = not write_line(self._descriptor, line)


def line_of(words: str) -> bytes:
    """Return a line for people, which no reader mistakes for a frame."""
    safe = "".join(char if char.isprintable() else " " for char in words)
    return ("launch: %s\n" % safe.replace(FRAME, "")).encode("utf-8", "replace")


def write_line(descriptor: int, line: bytes) -> bool:
    """Write a whole line, however long that takes; return False once the reader is gone."""
    view = memoryview(line)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return False
    return True
