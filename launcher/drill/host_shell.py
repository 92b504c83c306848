"""A plain shell on a host: a witness that has nothing to do with the agent."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time

from launcher.errors import HostError
from launcher.transport.client.desk import HostClient

MOST_BYTES = 16 * 1024 * 1024
_BEGUN, _ENDED = "launch: the script begins", "launch: the script has ended"


def assigned(**variables: str) -> str:
    """Return the lines with which a script begins that reads these variables; they are not exported."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def run(desk: HostClient, script: str, wait_s: float = 30.0) -> str:
    """Run a script with the host's `sh` and return what it printed; what it complains about is dropped.

    So is what a login prints before it. Raises HostError for a lost link, a shell that was killed, or one that has not ended
    within `wait_s` seconds: what is missing never counts as nothing to say.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.closing(desk.open_program(["sh"])) as stream:
        stream.settimeout(wait_s)
        begin = f"exec 2>/dev/null\ntrap 'echo \"{_ENDED}\"' EXIT\necho; echo '{_BEGUN}'"
        stream.sendall(f"{begin}\n{script}\n".encode())
        stream.shutdown(socket.SHUT_WR)
        said = bytearray()
        try:
            while piece := stream.recv(1 << 16):
                said += piece
                stream.settimeout(max(0.01, deadline - time.monotonic()))
                if len(said) > MOST_BYTES:
                    raise HostError(desk.host, f"{desk.host}: a shell printed more than {MOST_BYTES:,} bytes")
        except TimeoutError as error:
            raise HostError(desk.host, f"{desk.host}: a shell did not end within {wait_s:.0f} s") from error
    _, begun, words = said.decode("utf-8", "replace").partition(f"{_BEGUN}\n")
    words, ended, _ = words.rpartition(f"{_ENDED}\n")
    if not begun or not ended:
        raise HostError(desk.host, f"{desk.host}: a shell broke off")
    return words
