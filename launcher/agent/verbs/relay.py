"""Connect standard input and output to a TCP port on this loopback, for `launch forward` into a container.

The first output byte confirms that the port accepted the connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

READY = b"+"
PIECE = 1 << 16
CONNECT_S = 10.0
LOOK_S = 1.0
LEFT_S = 60.0
"""How long to wait for more answer bytes after the client's last byte: the client may be gone."""


def main(arguments: list[str]) -> int:
    """Forward one connection to the port in `arguments` until both directions end.

    Return 1 if nothing listens on it.
    """
    try:
        there = socket.create_connection(("localhost", int(arguments[0])), CONNECT_S)
    except OSError:
        return 1
    there.settimeout(None)
    os.write(1, READY)
    sender = threading.Thread(target=_send, args=(there,), daemon=True)
    sender.start()
    with contextlib.suppress(OSError):  # either end may close at any time
        _receive(there, sender)
    return 0


def _send(there: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            piece = os.read(0, PIECE)
            if not piece:
                break
            there.sendall(piece)
        there.shutdown(socket.SHUT_WR)


def _receive(there: socket.socket, sender: threading.Thread) -> None:
    silent_s = 0.0
    while silent_s < LEFT_S:
        if not select.select([there], [], [], LOOK_S)[0]:
            silent_s = 0.0 if sender.is_alive() else silent_s + LOOK_S
            continue
        view = memoryview(there.recv(PIECE))
        if not view:
            return
        while view:
            view = view[os.write(1, view) :]
        silent_s = 0.0
