"""A host over a connection that the user's own ssh holds open (ControlMaster), for logins that need a person.

launcher logs in with keys only. If a host asks for a password or a one-time code, the user logs in once with ssh,
which keeps the connection. Each stream is then an `ssh` process that joins it. That process never connects by
itself: if the connection is gone, it fails.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import threading
from collections.abc import Sequence

from launcher.base import user_sockets
from launcher.base.text import printable
from launcher.errors import ConnectionLostError, RefusedStreamError
from launcher.transport.agent_file import MAGIC, shell_command, shell_word
from launcher.transport.channel import ForwardingOpener
from launcher.transport.local import ProgramStream
from launcher.transport.ssh.ssh_config import Hop
from launcher.values.host import Host

CHECK_S = 10.0
MAX_HEARD, SAID_LINES = 4096, 3
"""The bytes of a login's output that are kept, and the lines that are shown."""


def find(host: Host, hop: Hop) -> MasterConnection | None:
    """Return the connection that ssh holds open to a host, by its ControlPath; None without one.

    The socket must be the user's own, in a private folder: another user's process could read and change all bytes.
    """
    if hop.control_path is None:
        return None
    try:
        user_sockets.check_socket(hop.control_path)
        words = [*_ssh(hop.control_path), "-O", "check", hop.alias]
        done = subprocess.run(
            words, capture_output=True, stdin=subprocess.DEVNULL, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return MasterConnection(host, hop, hop.control_path) if done.returncode == 0 else None


def _ssh(path: str) -> list[str]:
    """Return the start of a command line that uses the connection at a path, and can make no other."""
    alone = ("-F", "none", "-o", "ProxyCommand=false", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR")
    return ["ssh", "-S", path, *alone, "-T"]


class MasterConnection:
    """A connection of the user's ssh. Closing it ends launcher's streams, not the connection. Thread-safe."""

    def __init__(self, host: Host, hop: Hop, path: str) -> None:
        """Use the connection at a path; it has been checked."""
        self._host = host
        self._alias = hop.alias
        self._path = path
        self._lock = threading.Lock()
        self._streams: list[ProgramStream] = []
        self._is_closed = False
        self.about = f"{hop.user}@{hop.address}, by the connection that your ssh holds open"

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor lost."""
        with contextlib.suppress(OSError):
            user_sockets.check_socket(self._path)
            return not self._is_closed
        return False

    def open_link(self) -> MasterLink:
        """Start another agent, with a link that ends separately. Raises ConnectionLostError."""
        return MasterLink(self, is_alone=False)

    def only_link(self) -> MasterLink:
        """Start the only agent. The streams end with its link."""
        return MasterLink(self, is_alone=True)

    def start_agent(self) -> ProgramStream:
        """Start an agent, and return the stream to it."""
        return self._start(self._alias, shell_command(self._host.python, self._host.root))

    def no_agent(self, heard: bytes, stream: ProgramStream) -> ConnectionLostError:
        """Return the error for a stream that ended without an agent, with the last output of the login and of ssh."""
        lines = (heard + b"\n" + stream.errors()).decode("utf-8", "replace").splitlines()
        words = printable(" / ".join([line.strip() for line in lines if line.strip()][-SAID_LINES:]))
        mend = f"is the connection still there?   {shlex.join([*_ssh(self._path)[:3], '-O', 'check', self._alias])}"
        return ConnectionLostError(
            self._host.name, f"{self._host.name}: ssh ended before an agent began: {words}\n  {mend}"
        )

    def by_hand(self, command: str) -> str:
        """Return the shell command that runs a command on the host with ssh itself."""
        return self._host.by_hand(command)

    def open_socket(self, path: str) -> ProgramStream:
        """Raise RefusedStreamError: ssh opens Unix sockets of the host only as sockets of this machine."""
        words = "is a Unix socket, which the connection of your ssh does not open"
        raise RefusedStreamError(self._host.name, f"{self._host.name}: {path} {words}")

    def open_port(self, port: int) -> ProgramStream:
        """Open a stream to a TCP port of the host's loopback. It ends at once if no process listens there."""
        return self._start("-W", f"localhost:{port}", self._alias)

    def open_program(self, words: Sequence[str]) -> ProgramStream:
        """Open a stream to the standard input and output of a program."""
        return self._start(self._alias, f"exec sh -c {shell_word(shlex.join(['exec', *words]))}")

    def sever(self) -> None:
        """End all streams."""
        self.close()

    def close(self) -> None:
        """End all streams. The connection of the user's ssh stays."""
        with self._lock:
            self._is_closed = True
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _start(self, *words: str) -> ProgramStream:
        with self._lock:
            if self._is_closed:
                raise ConnectionLostError(self._host.name, f"{self._host.name}: the connection was closed")
            self._streams = [one for one in self._streams if not one.has_ended]
            stream = ProgramStream(self._host.name, [*_ssh(self._path), *words], hears_errors=True)
            self._streams.append(stream)
        return stream


class MasterLink(ForwardingOpener):
    """An agent's stream on a connection of the user's ssh."""

    def __init__(self, connection: MasterConnection, *, is_alone: bool) -> None:
        """Start the agent. With `is_alone`, all streams end with the link."""
        super().__init__(connection)
        self._connection = connection
        self._is_alone = is_alone
        self._heard = b""
        self._stream = connection.start_agent()
        self.settimeout = self._stream.settimeout
        self.sendall = self._stream.sendall
        self.shutdown = self._stream.shutdown

    def recv(self, size: int, /) -> bytes:
        """Return some bytes; b"" at the end of the stream.

        Raises ConnectionLostError with ssh's errors and the login's output if no agent starts.
        """
        piece = self._stream.recv(size)
        if MAGIC not in self._heard:
            self._heard = (self._heard + piece)[-MAX_HEARD:]
            if not piece:
                raise self._connection.no_agent(self._heard, self._stream)
        return piece

    def close(self) -> None:
        """Close the link, and all streams if no other agent uses the connection."""
        if self._is_alone:
            self._connection.close()
        else:
            self._stream.close()
