"""A channel to a Unix socket on the host: OpenSSH's `direct-streamlocal@openssh.com`, missing in paramiko.

PROTOCOL section 2.4 of OpenSSH: an open request with the socket's path, an empty string and the number 0. The
code follows paramiko's own `Transport.open_channel` (5.1), and uses its internals.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN

KIND = "direct-streamlocal@openssh.com"
WINDOW_BYTES = 2 * 1024 * 1024
PACKET_BYTES = 32 * 1024
POLL_S = 0.1


def open_streamlocal(transport: Any, path: str, timeout_s: float) -> paramiko.Channel:
    """Open a channel to the socket at `path` on the server.

    Raises paramiko.ChannelException if the server forbids it or no process listens there,
    paramiko.SSHException at the deadline, and AttributeError if paramiko's internals have changed.
    """
    with transport.lock:
        number = transport._next_channel()  # noqa: SLF001
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_OPEN)
        message.add_string(KIND)
        message.add_int(number)
        message.add_int(WINDOW_BYTES)
        message.add_int(PACKET_BYTES)
        message.add_string(path)
        message.add_string("")
        message.add_int(0)
        channel = paramiko.Channel(number)
        transport._channels.put(number, channel)  # noqa: SLF001
        transport.channel_events[number] = opened = threading.Event()
        transport.channels_seen[number] = True
        channel._set_transport(transport)  # type: ignore[attr-defined] # noqa: SLF001
        channel._set_window(WINDOW_BYTES, PACKET_BYTES)  # type: ignore[attr-defined] # noqa: SLF001
    transport._send_user_message(message)  # noqa: SLF001
    deadline = time.monotonic() + timeout_s
    while not opened.wait(POLL_S):
        if not transport.active or time.monotonic() > deadline:
            break
    # A lost connection first becomes inactive, then sets the event: so check the event before `active`.
    if opened.is_set() and transport.active and transport._channels.get(number) is not None:  # noqa: SLF001
        return channel
    raise transport.get_exception() or paramiko.SSHException(f"no channel to {path} within {timeout_s:g} s")
