"""The spool: a run's folder on this machine that grows from what a segment of the run prints, and is settled by its outputs.

What a segment sends is data of a job, which may have forged it: it may change the files of its own record and work, and
nothing else. Frames (remote/record/frame.py) are applied in their order. What cannot be applied leaves a hole, so that a
file that grows stays the beginning of the segment's own. All else that is printed goes to `service-N.log`.

    with Spool(run_dir, segment=1) as spool:
        for piece in follow(service, ref, spool.position):
            spool.take(piece.text, piece.stream)
        settled = spool.settle(outputs)

Progress is kept in `control/feed-N.json`. After this process has died, the pieces from `position` on are taken again, which
changes nothing that was applied. The same log in other pieces is taken from its beginning after `rewind`.
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

from launcher.remote.record import strict_json
from launcher.remote.record.files import REFUSED, paths_in, read_json, write_durably
from launcher.remote.record.frame import (
    FRAME,
    MOST_CHARS,
    NOTE,
    Frame,
    FrameError,
    RecordPath,
    read_frame,
    read_path,
)
from launcher.remote.record.rundir import Run
from launcher.remote.record.safe_open import (
    RunPath,
    UnreadableError,
    open_regular,
    opened_folder,
    parent_of,
    status_of,
)
from launcher.values.text import is_obeyed

VERSION = 1
STDOUT = "stdout"
SAVE_S = 0.5
CHATTER_BYTES = 1_000_000
"""Of what is no frame, so much is kept: the newest."""
MOST_HOLES = 100
MOST_FOLDERS = 1000
"""The numbered folders that one segment may make."""
MOST_MISSING = 100_000
"""Frames that may be missing in a row; a number beyond that is forged."""
MOST_LIVE_BYTES = 128 << 20
"""What a segment may append before its outputs come: twice what its agent prints. A job that forges frames has no such limit."""
MOST_FILES = 200_000
MOST_PARTS = 64
_PART = re.compile(r"[^/\x00\ud800-\udfff]{1,255}")
_STAGED = ".settle-"
_PIECE = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Hole(NamedTuple):
    """Something that could not be applied: the file, None if that is not known, its byte or the frame, and why."""

    path: str | None
    start: int
    why: str


class Settled(NamedTuple):
    """What the outputs changed, by path: `filled` was missing or a beginning, `replaced` had other contents.

    `refused` has the reason for each path that no output may have.
    """

    filled: tuple[str, ...]
    replaced: tuple[str, ...]
    refused: dict[str, str]


class Spool:
    """The folder of one run, fed by one segment. Only one process at a time may use it: the caller holds a lock."""

    def __init__(self, run_dir: Path, segment: int, after: int | None = None) -> None:
        """Go on where the last one stopped.

        The segment may write into the numbered folders above `after` alone, the last one of its payload. By default that is
        the last one that is there now, which is right before the segment was pushed.
        """
        self._run = Run(str(run_dir))
        self._file = self._run.control.below(f"feed-{segment}.json")
        record = read_json(self._file)
        newest = (self._run.numbers() or [0])[-1] if after is None else after
        self._after = int(record.get("after", newest))
        self._pieces = int(record.get("pieces", 0))
        self._sequence = int(record.get("seq", 0))
        self._holes = [Hole(*hole) for hole in record.get("holes", ())]
        self._has_ended = record.get("ended") is True
        self._appended = int(record.get("appended", 0))
        self._lines = _Lines(str(record.get("rest", "")), is_begun=record.get("mid") is True)
        self._chatter = _Chatter(self._run, segment, record.get("chatter") or {})
        self._own: set[int] = set()
        self._save_at_s = 0.0
        if not record:
            self.save()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the progress."""
        self.save()

    @property
    def position(self) -> int:
        """How many pieces of the log were taken."""
        return self._pieces

    @property
    def holes(self) -> tuple[Hole, ...]:
        """What could not be applied so far."""
        return tuple(self._holes)

    @property
    def has_live_view_ended(self) -> bool:
        """Whether the segment has said that it has printed enough: the rest comes with its outputs."""
        return self._has_ended

    def take(self, text: str, stream: str = STDOUT) -> None:
        """Take the next piece of the log. Raises OSError if this machine's disk refuses it."""
        if stream == STDOUT:
            for line, is_marked in self._lines.feed(text):
                if is_marked:
                    self._take_marked(line)
                else:
                    self._chatter.add(STDOUT, line)
        else:
            self._chatter.add(stream, text)
        self._pieces += 1
        if time.monotonic() >= self._save_at_s:
            self.save()

    def rewind(self) -> None:
        """Begin the log again, in pieces that may be others now. What was applied is not applied twice."""
        self._pieces = 0
        self._lines = _Lines("")
        self._chatter.rewind()
        self.save()

    def save(self) -> None:
        """Keep the progress, after what it says was done. Raises OSError."""
        record = {
            "version": VERSION,
            "after": self._after,
            "chatter": self._chatter.flush(),
            "pieces": self._pieces,
            "rest": self._lines.rest,
            "mid": self._lines.is_begun,
            "seq": self._sequence,
            "holes": self._holes,
            "ended": self._has_ended,
            "appended": self._appended,
        }
        write_durably(self._file, strict_json.encode(record) + "\n")
        self._save_at_s = time.monotonic() + SAVE_S

    # frames

    def _take_marked(self, line: str) -> None:
        if line.startswith(NOTE):
            self._has_ended = True
            self._chatter.add(STDOUT, line + "\n")
            return
        try:
            frame = read_frame(line.rstrip("\r"))
        except FrameError as error:
            self._note(str(error.path) if error.path else None, self._sequence + 1, str(error))
            return
        missing = frame.sequence - self._sequence - 1
        if missing < 0:
            return
        if missing > MOST_MISSING:
            self._note(str(frame.path), self._sequence + 1, "its number is too large")
            return
        if missing:
            self._note(None, self._sequence + 1, f"{missing} frames are missing")
        try:
            self._apply(frame)
        except OSError as error:
            if error.errno in REFUSED:
                raise
            self._note(str(frame.path), frame.offset, error.strerror or type(error).__name__)
        self._sequence = frame.sequence

    def _apply(self, frame: Frame) -> None:
        """Write what a frame carries, or note why not. Raises OSError."""
        why = self._why_foreign(frame.path)
        if why is not None:
            self._note(str(frame.path), frame.offset, why)
            return
        path = self._path_of(frame.path)
        if not frame.path.is_growing:
            _replace(path, frame.data)
            return
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            if frame.offset > size:
                self._note(str(frame.path), size, "a piece is missing")
            elif self._appended + len(frame.data) > MOST_LIVE_BYTES:
                self._note(str(frame.path), size, "more was printed than a segment prints")
            else:  # over bytes that were written before this process died, too
                _write_at(descriptor, frame.data, frame.offset)
                self._appended += len(frame.data)
        finally:
            os.close(descriptor)

    def _note(self, path: str | None, start: int, why: str) -> None:
        """Note a hole; one for each file and reason is enough."""
        is_known = any((hole.path, hole.why) == (path, why) for hole in self._holes)
        if not is_known and len(self._holes) < MOST_HOLES:
            self._holes.append(Hole(path, start, why))

    # the record

    def _path_of(self, path: RecordPath) -> RunPath:
        return self._run.folder(path.number).path.below(path.name)

    def _why_foreign(self, path: RecordPath) -> str | None:
        """Return why a segment may not write to a file; make its folder if it may. Raises OSError.

        A folder with a lock was made here, by a client that has judged the run meanwhile: it stays as it is.
        """
        number = path.number
        if number in self._own:
            return None
        if not self._after < number <= self._after + MOST_FOLDERS:
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

    def settle(self, files: Iterable[tuple[str, Iterable[bytes]]]) -> Settled:
        """Put a session's outputs in place, each a path below the run's folder and its bytes; return what that changed.

        They win over what was printed. States come last, so that whoever sees an end finds all that belongs to it. Raises
        OSError if this machine's disk refuses.
        """
        for path in paths_in(self._run.control):
            if os.path.basename(path).startswith(_STAGED):
                os.unlink(path)
        settling = _Settling(self._run)
        waiting: list[tuple[RecordPath, str]] = []
        for count, (path, pieces) in enumerate(files):
            of_record = read_path(path)
            if count >= MOST_FILES:
                settling.refused[path] = f"more than {MOST_FILES} files"
            elif of_record is not None:
                waiting.append((of_record, settling.stage(count, pieces)))
            elif is_obeyed(path):
                settling.refused[path] = "its name has control characters"
            elif not _is_of_work(path):
                settling.refused[path] = "no output lies there"
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
        settled = settling.settled()
        whole = {None, *(str(of_record) for of_record, _ in waiting)} - settled.refused.keys()
        self._holes = [hole for hole in self._holes if hole.path not in whole]
        self.save()
        return settled


def _is_of_work(path: str) -> bool:
    """Whether a path is one below work/ that a job may write to, without anything odd in it."""
    parts = path.split("/")
    is_plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    return is_plain and parts[0] == "work" and 1 < len(parts) <= MOST_PARTS and parts[1] != "incoming"


class _Settling:
    """Outputs on their way: each is written whole into `control/` first, and then takes the place of what it replaces."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._filled: list[str] = []
        self._replaced: list[str] = []
        self.refused: dict[str, str] = {}

    def settled(self) -> Settled:
        return Settled(tuple(self._filled), tuple(self._replaced), self.refused)

    def stage(self, number: int, pieces: Iterable[bytes]) -> str:
        """Write an output into control/; return its name there. Raises OSError."""
        name = f"{_STAGED}{number}"
        with opened_folder(self._run.control) as control:
            descriptor = os.open(name, _NEW, 0o644, dir_fd=control)
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
        return name

    def put(self, path: str, staged: str) -> None:
        """Put a staged output where it belongs, unless the same is there. Raises OSError if the disk refuses."""
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
    """Make the folders of a path below a run, through no link. Raises OSError."""
    folder = RunPath(run.path, run.path)
    for part in parts:
        with opened_folder(folder) as descriptor, contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=descriptor)
        folder = folder.below(part)


def _compare(target: RunPath, source: RunPath) -> tuple[bool, bool]:
    """Return whether a file is the same as another one, and whether it is missing or the beginning of it. Raises OSError."""
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
    """Put a file in the place of another one, whose mode stays. Raises OSError."""
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
    """Replace a small file at once, though not durably: what a crash tears comes again. Raises OSError."""
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
    """Lines of a text that comes in pieces: those that begin with a mark are held until they are whole, others are let go."""

    def __init__(self, rest: str, *, is_begun: bool = False) -> None:
        """Begin with the rest of the last line; `is_begun`: its beginning was let go."""
        self._parts = [rest] if rest else []
        self._size = len(rest)
        self.is_begun = is_begun

    @property
    def rest(self) -> str:
        """What is held of the last line."""
        self._parts = ["".join(self._parts)] if self._parts else []
        return "".join(self._parts)

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the next texts, and whether each is a whole line with a mark, without its end."""
        *lines, last = text.split("\n")
        for line in lines:
            whole = "".join([*self._parts, line]) if self._parts else line
            is_marked = not self.is_begun and whole.startswith((FRAME, NOTE))
            self._parts, self._size, self.is_begun = [], 0, False
            yield (whole, True) if is_marked else (whole + "\n", False)
        if last:
            self._parts.append(last)
            self._size += len(last)
            if self.is_begun or not self._may_be_marked():
                yield self.rest, False
                self._parts, self._size, self.is_begun = [], 0, True

    def _may_be_marked(self) -> bool:
        if self._size > MOST_CHARS:
            return False
        begin = self._parts[0] if len(self._parts[0]) >= len(FRAME) else self.rest
        return begin.startswith((FRAME, NOTE)) or FRAME.startswith(begin) or NOTE.startswith(begin)


class _Chatter:
    """What is printed and no frame: a file of its own, of which the newest end is kept.

    `seen` counts the characters of each stream since the log's beginning, `kept` those that were ever written.
    """

    def __init__(self, run: Run, segment: int, record: dict[str, dict[str, int] | int]) -> None:
        self._path = RunPath(run.path, os.path.join(run.path, f"service-{segment}.log"))
        self._seen: dict[str, int] = _counts(record.get("seen"))
        self._kept: dict[str, int] = _counts(record.get("kept"))
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._cut(record.get("size"))

    def _cut(self, size: object) -> None:
        """Forget what was written after the last record, for it comes again."""
        if isinstance(size, int):
            with contextlib.suppress(FileNotFoundError):
                descriptor = open_regular(self._path, os.O_WRONLY)
                try:
                    os.ftruncate(descriptor, min(size, os.fstat(descriptor).st_size))
                finally:
                    os.close(descriptor)

    def add(self, stream: str, text: str) -> None:
        seen, kept = self._seen.get(stream, 0), self._kept.get(stream, 0)
        self._seen[stream] = seen + len(text)
        if seen + len(text) > kept:
            self._waiting.append(text[max(0, kept - seen) :])
            self._waiting_characters += len(self._waiting[-1])
            self._kept[stream] = seen + len(text)
        if self._waiting_characters > CHATTER_BYTES:
            self._write()

    def rewind(self) -> None:
        self._seen = {}

    def flush(self) -> dict[str, object]:
        """Write what waits; return the record of it. Raises OSError."""
        return {"size": self._write(), "seen": self._seen, "kept": self._kept}

    def _write(self) -> int:
        """Write what waits; return the file's size."""
        data = "".join(self._waiting).encode("utf-8", "replace")[-CHATTER_BYTES:]
        descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            _write_at(descriptor, data, size)
            size += len(data)
            newest = (
                os.pread(descriptor, CHATTER_BYTES, size - CHATTER_BYTES)
                if size > 2 * CHATTER_BYTES
                else None
            )
        finally:
            os.close(descriptor)
        self._waiting, self._waiting_characters = [], 0
        if newest is None:
            return size
        _replace(self._path, newest)
        return len(newest)


def _counts(record: object) -> dict[str, int]:
    return {str(key): int(value) for key, value in record.items()} if isinstance(record, dict) else {}
