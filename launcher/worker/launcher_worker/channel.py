"""The connection to the agent: one Unix stream socket per process, one line of JSON per event.

It opens with the first event. After the first error no more events are sent, and the training continues
without the agent.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
import time
from typing import Any, Dict, Mapping, Optional

SEND_TIMEOUT_S = 10
BEAT_S = 1.0

# Built once, because every event is encoded with it.
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def rank() -> int:
    """Return the rank of this process; 0 is the main process.

    A RANK without WORLD_SIZE belongs to the script, for example the rank of a LoRA: programs that start ranks
    set both variables.
    """
    written = os.environ.get("RANK", "") if "WORLD_SIZE" in os.environ else ""
    return int(written) if written.isdecimal() else 0


def send(
    kind: str,
    step: Optional[int] = None,
    values: Optional[Mapping[str, Any]] = None,
    source: Optional[str] = None,
) -> None:
    """Send an event to the agent; do nothing without an agent.

    `source` is None for the script's own reports.
    """
    event: Dict[str, object] = {"kind": kind, "rank": rank(), "time": time.time()}
    if step is not None:
        event["step"] = int(step)
    if values is not None:
        event["values"] = values
    if source or process_channel.source:
        event["source"] = source or process_channel.source
    process_channel.send(event)


def beat(step: int, source: Optional[str] = None) -> None:
    """Report that a step was completed, at most once a second. The agent detects a hang when beats stop."""
    process_channel.beat(step, source)


class EventChannel:
    """One connection to the agent: opened by the first event, silent after the first error.

    `has_own_metrics`: the script reports its metrics itself, so the start-up hook does not. `source` is the
    default source of an event: in a script that the hook adapts, all events are the hook's.
    """

    def __init__(self) -> None:
        self.has_own_metrics = False
        self.source: Optional[str] = None
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self._is_silent = False
        self._last_beat_s = -math.inf

    def beat(self, step: int, source: Optional[str] = None) -> None:
        """Send a beat, unless one was sent within the last second."""
        now_s = time.monotonic()
        if now_s - self._last_beat_s >= BEAT_S:
            self._last_beat_s = now_s
            send("beat", step=step, source=source)

    def send(self, event: Mapping[str, Any]) -> None:
        """Send one event as one line; do nothing without an agent."""
        if event["kind"] in ("begin", "metric") and "source" not in event:
            self.has_own_metrics = True
        line = _encode(event).encode("ascii") + b"\n"
        with self._lock:
            if self._is_silent:
                return
            try:
                if self._socket is None:
                    address = os.environ.get("LAUNCH_SOCKET")
                    if not address:
                        return
                    self._socket = self._connect(address)
                self._socket.sendall(line)
            except OSError:
                # Do not try again, because half a line may have been sent. The training matters more than its curve.
                self._is_silent = True
                self.close()

    def start_anew(self) -> None:
        """Drop the parent's connection and lock. After a fork two processes would write into one stream."""
        self.close()
        self._lock = threading.Lock()
        self._is_silent = False

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, address: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel's timeout: with Python's own, each send would first wait for the socket to be writable.
            timeout = struct.pack("ll", SEND_TIMEOUT_S, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection


process_channel = EventChannel()
os.register_at_fork(after_in_child=process_channel.start_anew)
