"""Write the values of curves to a file of TensorBoard's format.

The file holds records: a length, its checksum, the bytes, and their checksum. Each record is an Event of
TensorBoard's `event.proto`: `wall_time = 1`, `step = 2`, and either `file_version = 3` or `summary = 5` with
`value = 1`, which has a `tag = 1` and a `simple_value = 2`.
"""

from __future__ import annotations

import math
import platform
import re
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from launcher.copy.run_files import RunFiles

VERSION = b"brain.Event:2"
_POLYNOMIAL = 0x82F63B78
_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
_NOT_IN_A_TAG = re.compile(r"[^-/\w.]")


class EventFile:
    """A new file of curves in a run's folder, which is created if missing. Raises OSError."""

    def __init__(self, files: RunFiles, folder: Path) -> None:
        """Create the file and write its version record."""
        files.make_folder(folder)
        now = time.time()
        path = folder / f"events.out.tfevents.{int(now):010}.{platform.node() or 'localhost'}"
        self._file = files.open(path, "wb", buffering=0)
        self._write(_record(_time(now) + _field(3, VERSION)))

    def add(self, values: Iterable[tuple[str, int, float, float]]) -> None:
        """Write values, each with its tag, its step and its time; they are in the file when this returns."""
        self._write(b"".join(_record(_event(*value)) for value in values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]


def _event(tag: str, step: int, value: float, at: float) -> bytes:
    scalar = _field(1, _NOT_IN_A_TAG.sub("_", tag).lstrip("/").encode()) + b"\x15" + _single(value)
    return _time(at) + b"\x10" + _varint(step) + _field(5, _field(1, scalar))


def _time(at: float) -> bytes:
    return b"\x09" + struct.pack("<d", at)


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a 64-bit integer as a varint: seven bits per byte, the lowest first."""
    found = bytearray()
    number &= _LONG  # the encoding of a negative number
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _single(value: float) -> bytes:
    """Return a number in single precision; a number that is too large becomes infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of some bytes, masked as in TensorFlow's records."""
    found = _WORD
    for byte in data:
        found = _TABLE[(found ^ byte) & 0xFF] ^ found >> 8
    found ^= _WORD
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & _WORD)


def _row(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
    return number


_TABLE = tuple(map(_row, range(256)))
