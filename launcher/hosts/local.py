"""This machine: the same agent over a socket pair instead of a wire."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from launcher.errors import HostError, NobodyListensError, RefusedStreamError
from launcher.hosts.agent_file import boot_command
from launcher.hosts.local_variables import of_local_runs
from launcher.values.host import Host

LEAVE_S = 5


class LocalLink:
    """An agent in a process of its own, in a session of its own: Ctrl-C here is not its affair."""

    def __init__(self, host: Host, variables: Mapping[str, str] | None = None) -> None:
        """Start the agent, with the variables that its runs may have, and with these."""
        self.about = "this machine"
        self._name = host.name
        self._programs: list[subprocess.Popen[bytes]] = []
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                boot_command(host.python or sys.executable, host.root),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={**of_local_runs(host, os.environ), **(variables or {})},
                start_new_session=True,
            )
        self.settimeout = ours.settimeout
        self.recv = ours.recv
        self.sendall = ours.sendall

    def by_hand(self, command: str) -> str:
        """Return the command as it is."""
        return command

    def open_socket(self, path: str) -> socket.socket:
        """Open a stream to a Unix socket of this machine. Raises RefusedStreamError."""
        with contextlib.ExitStack() as undo:
            stream = undo.enter_context(socket.socket(socket.AF_UNIX))
            try:
                stream.settimeout(LEAVE_S)
                stream.connect(path)
            except OSError as error:
                raise RefusedStreamError(self._name, f"{self._name}: {path}: {error.strerror}") from error
            undo.pop_all()
        return stream

    def open_port(self, port: int) -> socket.socket:
        """Open a stream to a TCP port of this machine's loopback. Raises NobodyListensError."""
        try:
            stream = socket.create_connection(("localhost", port), LEAVE_S)
        except OSError as error:
            raise NobodyListensError(self._name, f"{self._name}: nobody listens on port {port}") from error
        return stream

    def open_program(self, words: Sequence[str]) -> socket.socket:
        """Open a stream to the standard input and output of a program, which ends with it. Raises HostError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._programs.append(
                    subprocess.Popen(
                        words, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
                    )
                )
            except OSError as error:
                ours.close()
                raise HostError(self._name, f"{self._name}: {words[0]}: {error.strerror}") from error
        return ours

    def sever(self) -> None:
        """Cut the stream to the agent."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up; the agent leaves at once. One that does not is our own child, and is made to."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent has left before us
        self._socket.close()
        for program in self._programs:  # whose stream is closed by now, or nobody's any more
            program.kill()
            program.wait()
        for insist in (self._process.terminate, self._process.kill, self._process.poll):
            try:
                self._process.wait(LEAVE_S)
                return
            except subprocess.TimeoutExpired:
                insist()  # SIGTERM lets it clear away; one that is stopped hears only SIGKILL
