"""Frames: printed lines that carry pieces of a run's record, if the client sees only the agent's output.

    %launch-frame 1 SEQUENCE MODE PATH OFFSET LENGTH SHA256 BASE64

SEQUENCE counts from 1. MODE `+` appends LENGTH bytes at OFFSET, `=` replaces the whole file. SHA256 is the
digest of these bytes, BASE64 their zlib compression in base64. PATH is relative to the run's folder, e.g.
`record/0002/log.txt`. A line `%launch-note 1 WORDS` is a message for people.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from typing import NamedTuple, Optional

FRAME = "%launch-frame 1 "
NOTE = "%launch-note 1 "
APPEND, REPLACE = "+", "="
SMALL_FILES = ("sealed.json", "attempt.json", "precision.json", "state.json", "heartbeat")
GROWING_FILES = ("events.jsonl", "log.txt")
MAX_BYTES = 1 << 20
"""The most bytes in one frame; its line is less than twice as long."""
MAX_CHARS = 2 * MAX_BYTES
_PATH = re.compile(r"record/([0-9]{4,9})/([a-z.]+)")
_COUNT = re.compile(r"[0-9]{1,15}")


class FrameError(ValueError):
    """Raised for a line that begins like a frame but is not one.

    `path` is the frame's file, None if it cannot be read.
    """

    def __init__(self, words: str, path: Optional[RecordPath] = None) -> None:
        """Keep the reason, and the path of the frame's file if it is known."""
        super().__init__(words)
        self.path = path


class RecordPath(NamedTuple):
    """A file of a run's record that may travel in frames: the number of its folder, and the file's name."""

    number: int
    name: str

    def __str__(self) -> str:
        """Return the path below the run's folder."""
        return "record/%04d/%s" % self

    @property
    def is_growing(self) -> bool:
        """Whether the file only grows."""
        return self.name in GROWING_FILES


class Frame(NamedTuple):
    """A piece of a file, beginning at `offset` (0 for a whole file)."""

    sequence: int
    mode: str
    path: RecordPath
    offset: int
    data: bytes

    def line(self) -> bytes:
        """Return the line to print."""
        digest = hashlib.sha256(self.data).hexdigest()
        head = (self.sequence, self.mode, self.path, self.offset, len(self.data), digest)
        body = base64.b64encode(zlib.compress(self.data))
        return FRAME.encode() + b"%s %s\n" % (" ".join(map(str, head)).encode(), body)


def read_path(text: str) -> Optional[RecordPath]:
    """Return the record path in a text; None if no such file may travel in frames."""
    found = _PATH.fullmatch(text)
    if found is None or found[2] not in (*SMALL_FILES, *GROWING_FILES):
        return None
    path = RecordPath(int(found[1]), found[2])
    return path if path.number and str(path) == text else None  # `00001` is another folder than `0001`


def read_frame(line: str) -> Frame:
    """Return the frame in a line that begins with FRAME and has no line break. Raises FrameError."""
    words = line[len(FRAME) :].split(" ")
    path = read_path(words[2]) if len(words) > 2 else None
    if path is None:
        raise FrameError("it names no file of a record")
    if len(words) != 7:
        raise FrameError("it does not have 7 words", path)
    sequence, mode, _, offset, length, digest, body = words
    if not all(map(_COUNT.fullmatch, (sequence, offset, length))):
        raise FrameError("its counts are not numbers", path)
    if mode != (APPEND if path.is_growing else REPLACE) or (mode == REPLACE and int(offset)):
        raise FrameError("its mode is not that of its file", path)
    data = _unpack(body, path)
    if len(data) != int(length) or hashlib.sha256(data).hexdigest() != digest:
        raise FrameError("its bytes are not those of its SHA-256", path)
    return Frame(int(sequence), mode, path, int(offset), data)


def _unpack(body: str, path: RecordPath) -> bytes:
    """Decode and decompress a frame's bytes, at most MAX_BYTES. Raises FrameError.

    The bound is needed because a short text can expand to a huge one.
    """
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(body, validate=True), MAX_BYTES + 1)
    except (binascii.Error, ValueError, zlib.error):
        raise FrameError("its bytes cannot be read", path) from None
    if len(data) > MAX_BYTES or not unpacking.eof or unpacking.unused_data:
        raise FrameError("its bytes are cut, or too many", path)
    return data
