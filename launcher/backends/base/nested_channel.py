"""A channel to an agent inside a run's container or job, over a stream to the agent's input and output."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import RefusedStreamError
from launcher.transport.agent_file import MAGIC
from launcher.transport.channel import ByteStream, Socket
from launcher.values.reported.engine_access import RunLocation

MAX_KEPT = 4000


def serving(place: RunLocation) -> list[str]:
    """Return the command that serves a client inside the run, with the agent that prepared the run."""
    script = f'echo; echo "{MAGIC.decode()}have"; exec python3 -I "$0" serve "$1"'
    return ["sh", "-c", script, place.agent, place.path.rpartition("/runs/")[0]]


class NestedChannel:
    """A channel to an agent inside a run. It opens no further streams."""

    def __init__(self, host: str, stream: ByteStream, place: str) -> None:
        """Take over a stream to an agent in a `place`, e.g. "container"."""
        self.about = f"in its {place}"
        self.first = b""
        """The first bytes received, at most MAX_KEPT. If no agent started, they hold the error message."""
        self._host = host
        self._place = place
        self._stream = stream
        self.settimeout = stream.settimeout
        self.sendall = stream.sendall
        self.close = stream.close
        self.sever = stream.close

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, or empty bytes at the end of the stream."""
        piece = self._stream.recv(size)
        self.first += piece[: MAX_KEPT - len(self.first)]
        return piece

    def by_hand(self, command: str) -> str:
        """Return the command unchanged."""
        return command

    def open_socket(self, path: str) -> Socket:
        """Raise RefusedStreamError."""
        raise self._refused(path)

    def open_port(self, port: int) -> Socket:
        """Raise RefusedStreamError."""
        raise self._refused(f"port {port}")

    def open_program(self, words: Sequence[str]) -> Socket:
        """Raise RefusedStreamError."""
        raise self._refused(words[0])

    def _refused(self, what: str) -> RefusedStreamError:
        return RefusedStreamError(
            self._host, f"{self._host}: {what} cannot be opened through the agent in its {self._place}"
        )
