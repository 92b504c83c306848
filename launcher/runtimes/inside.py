"""A link to an agent inside of what a run runs in, such as its container: it leads nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import RefusedStreamError
from launcher.hosts.agent_file import MAGIC
from launcher.hosts.channel import Socket, Stream
from launcher.values.engine_access import RunLocation


def serving(place: RunLocation) -> list[str]:
    """Return the command that serves a client inside: by the agent that the run was prepared with."""
    script = f'echo; echo "{MAGIC.decode()}have"; exec python3 -I "$0" serve "$1"'
    return ["sh", "-c", script, place.agent, place.path.rpartition("/runs/")[0]]


class Inside:
    """A link to an agent over a stream, from which no other stream is opened. `where` is said of it, e.g. `its container`."""

    def __init__(self, host: str, where: str, stream: Stream) -> None:
        """Take over a stream."""
        self.about = f"in {where}"
        self._host = host
        self._where = where
        self.settimeout = stream.settimeout
        self.recv = stream.recv
        self.sendall = stream.sendall
        self.close = stream.close
        self.sever = stream.close

    def by_hand(self, command: str) -> str:
        """Return the command itself."""
        return command

    def open_socket(self, path: str) -> Socket:
        """Raise RefusedStreamError."""
        raise RefusedStreamError(self._host, f"{self._host}: {path} is not for {self._where}")

    def open_port(self, port: int) -> Socket:
        """Raise RefusedStreamError."""
        raise RefusedStreamError(self._host, f"{self._host}: port {port} is not for {self._where}")

    def open_program(self, words: Sequence[str]) -> Socket:
        """Raise RefusedStreamError."""
        raise RefusedStreamError(self._host, f"{self._host}: {words[0]} is not for {self._where}")
