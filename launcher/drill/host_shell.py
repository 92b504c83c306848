"""A plain shell on a host, independent of the agent."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time

from launcher.errors import HostError
from launcher.transport.client.host_client import HostClient

MAX_BYTES = 16 * 1024 * 1024
_BEGUN, _ENDED = "launch: the script begins", "launch: the script has ended"


def assigned(**variables: str) -> str:
    """Return shell assignments of these variables, for the beginning of a script. They are not exported."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def run(client: HostClient, script: str, wait_s: float = 30.0) -> str:
    """Run a script with the host's `sh` and return its standard output.

    Standard error, and output of the login before the script, are dropped. Raises HostError for a lost
    connection, a killed shell, or a script that has not ended within `wait_s` seconds: incomplete output
    never counts as empty.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.closing(client.open_program(["sh"])) as stream:
        stream.settimeout(wait_s)
        begin = f"exec 2>/dev/null\ntrap 'echo \"{_ENDED}\"' EXIT\necho; echo '{_BEGUN}'"
        stream.sendall(f"{begin}\n{script}\n".encode())
        stream.shutdown(socket.SHUT_WR)
        said = bytearray()
        try:
            while piece := stream.recv(1 << 16):
                said += piece
                stream.settimeout(max(0.01, deadline - time.monotonic()))
                if len(said) > MAX_BYTES:
                    raise HostError(
                        client.host, f"{client.host}: a shell printed more than {MAX_BYTES:,} bytes"
                    )
        except TimeoutError as error:
            raise HostError(
                client.host, f"{client.host}: a shell did not end within {wait_s:.0f} s"
            ) from error
    _, begun, words = said.decode("utf-8", "replace").partition(f"{_BEGUN}\n")
    words, ended, _ = words.rpartition(f"{_ENDED}\n")
    if not begun or not ended:
        raise HostError(client.host, f"{client.host}: a shell broke off")
    return words
