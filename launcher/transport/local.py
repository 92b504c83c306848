"""This machine as a host: the same agents over socket pairs instead of a network."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence

from launcher.base import own_variables
from launcher.errors import ConnectionLostError, HostError, PortClosedError, RefusedStreamError
from launcher.transport.agent_file import boot_command
from launcher.transport.local_variables import of_local_runs
from launcher.values.host import Host

LEAVE_S = 5


class LocalLink:
    """An agent in its own process and session, so that Ctrl-C does not reach it."""

    def __init__(self, host: Host, variables: Mapping[str, str] | None = None) -> None:
        """Start the agent, with the variables that its runs may inherit, and `variables`."""
        self.about = "this machine"
        self._name = host.name
        self._programs: list[ProgramStream] = []
        python = host.python or sys.executable
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                boot_command(os.path.abspath(python) if "/" in python else python, host.root),
                cwd="/",  # in a project's folder `python -c` would import the project's modules
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={**of_local_runs(host, own_variables.inherited()), **(variables or {})},
                start_new_session=True,
            )
        self.settimeout = ours.settimeout
        self.recv = ours.recv
        self.sendall = ours.sendall

    @property
    def has_ended(self) -> bool:
        """Whether the agent is known to have exited."""
        return self._process.returncode is not None

    def by_hand(self, command: str) -> str:
        """Return the command unchanged."""
        return command

    def open_socket(self, path: str) -> socket.socket:
        """Open a stream to a Unix socket of this machine. Raises RefusedStreamError."""
        return _socket(self._name, path)

    def open_port(self, port: int) -> socket.socket:
        """Open a stream to a TCP port of this machine's loopback. Raises PortClosedError."""
        return _port(self._name, port)

    def open_program(self, words: Sequence[str]) -> ProgramStream:
        """Open a stream to the standard input and output of a program. The program ends with the stream.

        Raises HostError.
        """
        self._programs.append(ProgramStream(self._name, words))
        return self._programs[-1]

    def sever(self) -> None:
        """Cut the stream to the agent."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection.

        The agent should then exit at once. If it does not, this process, its parent, terminates it.
        """
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent has exited already
        self._socket.close()
        for program in self._programs:  # their streams are closed or unused by now
            program.close()
        for insist in (self._process.terminate, self._process.kill, self._process.poll):
            try:
                self._process.wait(LEAVE_S)
                return
            except subprocess.TimeoutExpired:
                insist()  # SIGTERM lets it clean up; a stopped process reacts only to SIGKILL


class LocalConnection:
    """This machine as a connection for several agents. Thread-safe."""

    about = "this machine"

    def __init__(self, host: Host, variables: Mapping[str, str] | None = None) -> None:
        """Start no agent yet. Agents get the variables that the host's runs may inherit, and `variables`."""
        self._host = host
        self._variables = variables
        self._lock = threading.Lock()
        self._links: list[LocalLink] = []
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor severed."""
        return not self._is_closed

    def open_link(self) -> LocalLink:
        """Start another agent, with a link that ends separately.

        Raises ConnectionLostError on a closed connection.
        """
        link = LocalLink(self._host, self._variables)
        with self._lock:
            if not self._is_closed:
                self._links = [known for known in self._links if not known.has_ended]
                self._links.append(link)
                return link
        link.close()
        raise ConnectionLostError(self._host.name, f"{self._host.name}: the connection was closed")

    def by_hand(self, command: str) -> str:
        """Return the command unchanged."""
        return command

    def open_socket(self, path: str) -> socket.socket:
        """Open a stream to a Unix socket of this machine. Raises RefusedStreamError."""
        return _socket(self._host.name, path)

    def open_port(self, port: int) -> socket.socket:
        """Open a stream to a TCP port of this machine's loopback. Raises PortClosedError."""
        return _port(self._host.name, port)

    def open_program(self, words: Sequence[str]) -> ProgramStream:
        """Open a stream to the standard input and output of a program. The program ends with the stream.

        Raises HostError.
        """
        return ProgramStream(self._host.name, words)

    def sever(self) -> None:
        """Cut the streams to all agents."""
        for link in self._end():
            with contextlib.suppress(OSError):  # it has ended
                link.sever()

    def close(self) -> None:
        """Close the links to all agents, and wait for their exit."""
        for link in self._end():
            link.close()

    def _end(self) -> list[LocalLink]:
        with self._lock:
            self._is_closed = True
            return list(self._links)


class ProgramStream:
    """The stream to a program's standard input and output. The program ends with it."""

    def __init__(self, host: str, words: Sequence[str], *, hears_errors: bool = False) -> None:
        """Start the program in its own session. Raises HostError.

        With `hears_errors`, its standard error goes to `errors`, else to that of this process.
        """
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile() if hears_errors else None  # noqa: SIM115 - closed with the stream
        with theirs:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._errors,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise HostError(host, f"{host}: {words[0]}: {error.strerror}") from error
        self._socket = ours
        self.settimeout = ours.settimeout
        self.recv = ours.recv
        self.sendall = ours.sendall
        self.shutdown = ours.shutdown

    @property
    def has_ended(self) -> bool:
        """Whether the program has exited."""
        return self._process.poll() is not None

    def errors(self) -> bytes:
        """Return what the program has written to its standard error so far."""
        if self._errors is None:
            return b""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        """Close the stream, and end the program."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._socket.close()
        self._process.kill()
        self._process.wait()
        if self._errors is not None:
            self._errors.close()


def _socket(host: str, path: str) -> socket.socket:
    with contextlib.ExitStack() as undo:
        stream = undo.enter_context(socket.socket(socket.AF_UNIX))
        try:
            stream.settimeout(LEAVE_S)
            stream.connect(path)
        except OSError as error:
            raise RefusedStreamError(host, f"{host}: {path}: {error.strerror}") from error
        undo.pop_all()
    return stream


def _port(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection(("localhost", port), LEAVE_S)
    except OSError as error:
        raise PortClosedError(host, f"{host}: no process listens on port {port}") from error
