"""A plain shell on a host: a witness that has nothing to do with the agent."""

from __future__ import annotations

import contextlib
import socket
import time

from launcher.errors import HostError
from launcher.hosts import Desk

MOST_BYTES = 16 * 1024 * 1024


def run(desk: Desk, script: str, wait_s: float = 30.0) -> str:
    """Run a script with the host's `sh` and return what it printed; what it complains about is dropped.

    Raises HostError for a lost link, or if it has not ended within `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.closing(desk.open_program(["sh"])) as stream:
        stream.settimeout(wait_s)
        stream.sendall(f"exec 2>/dev/null\n{script}\n".encode())
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
    return said.decode("utf-8", "replace")
