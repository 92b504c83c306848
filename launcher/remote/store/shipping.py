"""Streams to and from a client in chunks, and a run's artifacts as one tar stream."""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from typing import Any

from ..record import strict_json
from ..record.rundir import Run
from .manifest import ShippingError

CHUNK = 1 << 18


class ChunkReader:
    """A stream that the client sends in chunks: the line {"chunk": size} before each, {"chunk": 0} at the end."""

    def __init__(self, wire: Any) -> None:
        """Read chunks from the wire."""
        self._wire = wire
        self._rest = b""
        self._is_over = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; b"" at the end of the stream."""
        while len(self._rest) < size and not self._is_over:
            length = int(strict_json.decode(self._wire.read_line())["chunk"])
            if length == 0:
                self._is_over = True
            else:
                self._rest += self._wire.read(length)
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def skip_rest(self) -> None:
        """Read to the end, so that the next line is a request."""
        while self.read(CHUNK):
            continue


class ChunkWriter:
    """A stream to the client in chunks, which tarfile writes to."""

    def __init__(self, wire: Any) -> None:
        """Write chunks to the wire."""
        self._wire = wire
        self._rest = bytearray()

    def write(self, data: bytes) -> int:
        """Accept bytes; send them once there are enough for a chunk."""
        self._rest += data
        if len(self._rest) >= CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Send the buffered bytes."""
        if self._rest:
            self._wire.write({"chunk": len(self._rest)}, bytes(self._rest))
            self._rest = bytearray()

    def finish(self) -> None:
        """Send the end of the stream."""
        self.flush()
        self._wire.write({"chunk": 0})


def _digest(file: Any) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    while True:
        piece = file.read(1 << 20)
        if not piece:
            return digest.hexdigest(), size
        digest.update(piece)
        size += len(piece)


def send_artifacts(run: Run, wire: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Send the regular files below artifacts/ as a tar stream; return their manifest, and the reason for each omission.

    A file is sent with the length that it had when it was hashed; later appends are ignored. Links are not sent.
    Raises ShippingError naming a file that shrank meanwhile.
    """
    manifest = {}
    left_out: dict[str, str] = {}

    def leave_out(error: OSError) -> None:
        if error.errno != errno.ENOENT:  # removed meanwhile, or no artifacts folder yet
            left_out[os.path.relpath(str(error.filename), run.artifacts)] = str(error.strerror)

    stream = ChunkWriter(wire)
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for folder, _, names in os.walk(run.artifacts, onerror=leave_out):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                try:
                    file = open(path, "rb")  # noqa: SIM115 - closed below; an error of the wire is not an error of this file
                except OSError as error:
                    leave_out(error)
                    continue
                with file:
                    info = tarfile.TarInfo(os.path.relpath(path, run.artifacts))
                    digest, info.size = _digest(file)
                    file.seek(0)
                    archive.addfile(info, _Whole(file, info.name))
                    manifest[info.name] = {"sha256": digest, "size": info.size}
    stream.finish()
    return manifest, left_out


class _Whole:
    """A file that raises ShippingError if it ends early."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        if len(data) < size:
            raise ShippingError("%s shrank while it was being sent; pull again" % self._name)
        return data
