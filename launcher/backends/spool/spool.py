"""The spool: a run's local folder, filled from a segment's printed log and completed from its output files.

The job may forge the log and the output files, so these may change only the record and work of this segment.
Frames (agent/record/frame.py) are applied in order. A frame that cannot be applied is dropped. If it is
part of a growing file, all later frames of that file are dropped too, so that the local copy stays a prefix
of the segment's. All other printed text goes to `service-N.log`.

    with Spool(run_dir, segment=1) as spool:
        for piece in follow(service, ref, spool.position):
            spool.take(piece.text, piece.stream)
        settled = spool.settle(outputs)

The progress is kept in `control/feed-N.json`. After a crash of this process, the pieces from `position` on
are taken again; frames that were already applied are dropped.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from launcher.agent.record import strict_json
from launcher.agent.record.files import REFUSED, paths_in, read_json, write_durably
from launcher.agent.record.frame import (
    FRAME,
    MAX_CHARS,
    Frame,
    FrameError,
    RecordPath,
    read_frame,
    read_path,
)
from launcher.agent.record.rundir import Run
from launcher.agent.record.safe_open import (
    RunPath,
    UnreadableError,
    open_regular,
    opened_folder,
    parent_of,
    status_of,
)
from launcher.base.text import is_obeyed

VERSION = 1
STDOUT = "stdout"
SAVE_S = 0.5
MAX_OTHER_TEXT_BYTES = 1_000_000
"""The size to which the file of other text is cut, in bytes; the newest text is kept."""
MAX_FOLDERS = 1000
"""The largest number of numbered folders that one segment may make."""
MAX_MISSING = 100_000
"""The largest number of consecutive frames that may be missing; a larger gap means a forged number."""
MAX_LIVE_BYTES = 128 << 20
"""Bytes that a segment may append before its output files arrive: twice its agent's own limit.

A job that forges frames ignores the agent's limit.
"""
MAX_FILES = 200_000
MAX_PARTS = 64
_PART = re.compile(r"[^/\x00\ud800-\udfff]{1,255}")
_STAGED = ".settle-"
_PIECE = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class OutputChanges(NamedTuple):
    """The changes made by output files: paths that were `filled`, `replaced` or `refused`.

    `filled` files were missing or incomplete; `replaced` files had other contents. `refused` maps each
    refused path to the reason.
    """

    filled: tuple[str, ...]
    replaced: tuple[str, ...]
    refused: dict[str, str]


class Spool:
    """The folder of one run, fed by one segment.

    Only one process at a time may use it: the caller holds a lock.
    """

    def __init__(self, run_dir: Path, segment: int, after: int | None = None) -> None:
        """Continue from the saved progress.

        The segment may write only into the numbered folders above `after`, the last folder of its payload. By
        default, `after` is the last folder that exists now, which is right before the segment is pushed.
        """
        self._run = Run(str(run_dir))
        self._file = self._run.control.below(f"feed-{segment}.json")
        record = read_json(self._file)
        newest = (self._run.numbers() or [0])[-1] if after is None else after
        self._after = int(record.get("after", newest))
        self._pieces = int(record.get("pieces", 0))
        self._sequence = int(record.get("seq", 0))
        self._appended = int(record.get("appended", 0))
        self._lines = _Lines(str(record.get("rest", "")), is_begun=record.get("mid") is True)
        self._other_text = _OtherText(self._run, segment, (record.get("chatter") or {}).get("size"))
        self._own: set[int] = set()
        self._save_at_s = 0.0
        if not record:
            self.save()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save the progress."""
        self.save()

    @property
    def position(self) -> int:
        """The number of log pieces taken."""
        return self._pieces

    def take(self, text: str, stream: str = STDOUT) -> None:
        """Take the next piece of the log. Raises OSError if this machine's disk refuses it."""
        if stream == STDOUT:
            for line, is_frame in self._lines.feed(text):
                if is_frame:
                    self._take_frame(line)
                else:
                    self._other_text.add(line)
        else:
            self._other_text.add(text)
        self._pieces += 1
        if time.monotonic() >= self._save_at_s:
            self.save()

    def save(self) -> None:
        """Save the progress, after the writes that it describes. Raises OSError."""
        record = {
            "version": VERSION,
            "after": self._after,
            "chatter": {"size": self._other_text.flush()},
            "pieces": self._pieces,
            "rest": self._lines.rest,
            "mid": self._lines.is_begun,
            "seq": self._sequence,
            "appended": self._appended,
        }
        write_durably(self._file, strict_json.encode(record) + "\n")
        self._save_at_s = time.monotonic() + SAVE_S

    # frames

    def _take_frame(self, line: str) -> None:
        """Apply a frame. Drop one that was applied before or cannot be applied.

        Raises OSError if this machine's disk refuses.
        """
        try:
            frame = read_frame(line.rstrip("\r"))
        except FrameError:
            return
        if not 0 < frame.sequence - self._sequence <= MAX_MISSING + 1:
            return
        try:
            self._apply(frame)
        except OSError as error:
            if error.errno in REFUSED:
                raise
        self._sequence = frame.sequence

    def _apply(self, frame: Frame) -> None:
        """Write a frame's data, if its segment may write to that file. Raises OSError."""
        if self._why_foreign(frame.path) is not None:
            return
        path = self._path_of(frame.path)
        if not frame.path.is_growing:
            _replace(path, frame.data)
            return
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
        try:
            is_next = frame.offset <= os.fstat(descriptor).st_size  # otherwise a piece is missing
            if is_next and self._appended + len(frame.data) <= MAX_LIVE_BYTES:
                _write_at(
                    descriptor, frame.data, frame.offset
                )  # also overwrites data written before this process died
                self._appended += len(frame.data)
        finally:
            os.close(descriptor)

    # the record

    def _path_of(self, path: RecordPath) -> RunPath:
        return self._run.folder(path.number).path.below(path.name)

    def _why_foreign(self, path: RecordPath) -> str | None:
        """Return why a segment may not write to a file, or make the file's folder if it may. Raises OSError.

        A folder with a lock is not the segment's: a client on this machine made it, and it stays unchanged.
        """
        number = path.number
        if number in self._own:
            return None
        if not self._after < number <= self._after + MAX_FOLDERS:
            return "its folder is not the segment's"
        if number > 1 and not os.path.isdir(self._run.folder(number - 1).path):
            return "a folder before its folder is missing"
        with opened_folder(self._run.record) as record, contextlib.suppress(FileExistsError):
            os.mkdir(f"{number:04d}", 0o755, dir_fd=record)
        try:
            status_of(self._run.folder(number).lock)
        except FileNotFoundError:
            self._own.add(number)
            return None
        return "its folder was made here"

    # the outputs

    def settle(self, files: Iterable[tuple[str, Iterable[bytes]]]) -> OutputChanges:
        """Put a session's output files in place. Each is a path below the run's folder and its bytes.

        Return the changes. Output files replace printed data. A `state.json` is placed after the other files
        of its folder, so that a reader that sees the run's end finds them. Raises OSError if this machine's
        disk refuses.
        """
        for path in paths_in(self._run.control):
            if os.path.basename(path).startswith(_STAGED):
                os.unlink(path)
        settling = _Settling(self._run)
        waiting: list[tuple[RecordPath, str]] = []
        for count, (path, pieces) in enumerate(files):
            of_record = read_path(path)
            if count >= MAX_FILES:
                settling.refused[path] = f"more than {MAX_FILES} files"
            elif of_record is not None:
                waiting.append((of_record, settling.stage(count, pieces)))
            elif is_obeyed(path):
                settling.refused[path] = "its name has control characters"
            elif not _is_of_work(path):
                settling.refused[path] = "an output cannot be at this path"
            else:
                settling.put(path, settling.stage(count, pieces))
        for of_record, staged in sorted(
            waiting, key=lambda one: (one[0].number, one[0].name == "state.json")
        ):
            try:
                why = self._why_foreign(of_record)
            except OSError as error:
                why = error.strerror or type(error).__name__
            if why is None:
                settling.put(str(of_record), staged)
            else:
                settling.refuse(str(of_record), staged, why)
        return settling.settled()


def _is_of_work(path: str) -> bool:
    """Whether a job may write to a path: a normal one below work/."""
    parts = path.split("/")
    is_plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    return is_plain and parts[0] == "work" and 1 < len(parts) <= MAX_PARTS and parts[1] != "incoming"


class _Settling:
    """Outputs being put in place: each is written whole into `control/` first, and then moved to its target."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._filled: list[str] = []
        self._replaced: list[str] = []
        self.refused: dict[str, str] = {}

    def settled(self) -> OutputChanges:
        return OutputChanges(tuple(self._filled), tuple(self._replaced), self.refused)

    def stage(self, number: int, pieces: Iterable[bytes]) -> str:
        """Write an output into control/ and return its name there. Raises OSError."""
        name = f"{_STAGED}{number}"
        with opened_folder(self._run.control) as control:
            descriptor = os.open(name, _NEW, 0o644, dir_fd=control)
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
        return name

    def put(self, path: str, staged: str) -> None:
        """Move a staged output to its target, unless the target has the same contents.

        Raises OSError if the disk refuses.
        """
        target = RunPath(self._run.path, os.path.join(self._run.path, path))
        source = self._run.control.below(staged)
        try:
            _make_folders(self._run, path.split("/")[:-1])
            is_same, is_beginning = _compare(target, source)
            if is_same:
                os.unlink(source)
                return
            _move(source, target)
        except OSError as error:
            if error.errno in REFUSED:
                raise
            self.refuse(path, staged, error.strerror or type(error).__name__)
        else:
            (self._filled if is_beginning else self._replaced).append(path)

    def refuse(self, path: str, staged: str, why: str) -> None:
        self.refused[path] = why
        os.unlink(self._run.control.below(staged))


def _make_folders(run: Run, parts: list[str]) -> None:
    """Make the folders of a path below a run, without following links. Raises OSError."""
    folder = RunPath(run.path, run.path)
    for part in parts:
        with opened_folder(folder) as descriptor, contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=descriptor)
        folder = folder.below(part)


def _compare(target: RunPath, source: RunPath) -> tuple[bool, bool]:
    """Return whether `target` equals `source`, and whether `target` is missing or a prefix of `source`. Raises OSError."""
    try:
        theirs = open_regular(target, os.O_RDONLY)
    except FileNotFoundError:
        return False, True
    except UnreadableError:
        return False, False
    with open(theirs, "rb") as old, open(open_regular(source, os.O_RDONLY), "rb") as new:
        while True:
            piece = old.read(_PIECE)
            if new.read(len(piece)) != piece:
                return False, False
            if not piece:
                return not new.read(1), True


def _move(source: RunPath, target: RunPath) -> None:
    """Replace a file by another one, keeping the mode of the replaced file. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, UnreadableError):
        kept = open_regular(target, os.O_RDONLY)
        try:
            os.chmod(source, os.fstat(kept).st_mode & 0o777)
        finally:
            os.close(kept)
    with opened_folder(parent_of(source)) as from_folder, opened_folder(parent_of(target)) as to_folder:
        names = os.path.basename(source), os.path.basename(target)
        os.replace(*names, src_dir_fd=from_folder, dst_dir_fd=to_folder)


def _replace(path: RunPath, data: bytes) -> None:
    """Replace a small file atomically, but not durably: data lost in a crash is sent again. Raises OSError."""
    name = os.path.basename(path)
    with opened_folder(parent_of(path)) as folder:
        temporary = f".{name}.{os.urandom(8).hex()}"
        descriptor = os.open(temporary, _NEW, 0o644, dir_fd=folder)
        try:
            _write_at(descriptor, data, 0)
        finally:
            os.close(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


class _Lines:
    """Splits text that arrives in pieces into lines.

    A line that begins with a frame's mark is held until it is complete. Other text is passed on at once.
    """

    def __init__(self, rest: str, *, is_begun: bool = False) -> None:
        """Begin with the held part of the last line.

        `is_begun`: the start of that line was already passed on.
        """
        self._parts = [rest] if rest else []
        self._size = len(rest)
        self.is_begun = is_begun

    @property
    def rest(self) -> str:
        """The held part of the last line."""
        self._parts = ["".join(self._parts)] if self._parts else []
        return "".join(self._parts)

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the next texts, each with a flag.

        The flag is true for a complete marked line, which is yielded without its newline.
        """
        *lines, last = text.split("\n")
        for line in lines:
            whole = "".join([*self._parts, line]) if self._parts else line
            is_marked = not self.is_begun and whole.startswith(FRAME)
            self._parts, self._size, self.is_begun = [], 0, False
            yield (whole, True) if is_marked else (whole + "\n", False)
        if last:
            self._parts.append(last)
            self._size += len(last)
            if self.is_begun or not self._may_be_marked():
                yield self.rest, False
                self._parts, self._size, self.is_begun = [], 0, True

    def _may_be_marked(self) -> bool:
        if self._size > MAX_CHARS:
            return False
        begin = self._parts[0] if len(self._parts[0]) >= len(FRAME) else self.rest
        return begin.startswith(FRAME) or FRAME.startswith(begin)


class _OtherText:
    """Printed text that is not a frame, in a separate file.

    The oldest text is dropped when the file is too large.
    """

    def __init__(self, run: Run, segment: int, size: object) -> None:
        """Truncate the file to `size` bytes, the last recorded size. Later text is delivered again."""
        self._path = RunPath(run.path, os.path.join(run.path, f"service-{segment}.log"))
        self._waiting: list[str] = []
        self._waiting_characters = 0
        if isinstance(size, int):
            with contextlib.suppress(FileNotFoundError):
                descriptor = open_regular(self._path, os.O_WRONLY)
                try:
                    os.ftruncate(descriptor, min(size, os.fstat(descriptor).st_size))
                finally:
                    os.close(descriptor)

    def add(self, text: str) -> None:
        self._waiting.append(text)
        self._waiting_characters += len(text)
        if self._waiting_characters > MAX_OTHER_TEXT_BYTES:
            self.flush()

    def flush(self) -> int:
        """Write the waiting text and return the file's size. Raises OSError."""
        data = "".join(self._waiting).encode("utf-8", "replace")[-MAX_OTHER_TEXT_BYTES:]
        descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            _write_at(descriptor, data, size)
            size += len(data)
            is_large = size > 2 * MAX_OTHER_TEXT_BYTES
            newest = (
                os.pread(descriptor, MAX_OTHER_TEXT_BYTES, size - MAX_OTHER_TEXT_BYTES) if is_large else None
            )
        finally:
            os.close(descriptor)
        self._waiting, self._waiting_characters = [], 0
        if newest is None:
            return size
        _replace(self._path, newest)
        return len(newest)
