"""Shared parts of building images and environments: a lock for one client, and the program's output."""

from __future__ import annotations

import base64
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from launcher.backends.base.runtime import Say
from launcher.base.text import printable
from launcher.errors import ConnectionLostError
from launcher.transport.client.host_client import HostClient
from launcher.values.reported.answers import HeldLock

POLL_S = 0.5


@contextlib.contextmanager
def alone(client: HostClient, lock: str, title: str, say: Say) -> Iterator[HeldLock]:
    """Hold a lock on the host. Wait while another launch builds the same thing.

    A lost connection releases the lock too.
    """
    while not (answer := client.making.hold(lock)).held:
        say(f"{title}: another launch is making it")
        time.sleep(POLL_S)
    try:
        yield answer
    finally:
        with contextlib.suppress(ConnectionLostError):
            client.making.let_go(lock)


def encoded(files: dict[str, bytes]) -> dict[str, str]:
    """Return files encoded for JSON."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


class OutputLines:
    """A program's output, line by line: shows the steps and keeps the last lines."""

    def __init__(self, say: Say, step: Callable[[str], str | None], kept: int) -> None:
        """Show the result of `step` for each line, and keep the last `kept` lines."""
        self._say = say
        self._step = step
        self._rest = b""
        self._kept: deque[str] = deque(maxlen=kept)

    def take(self, data: bytes) -> None:
        """Process some bytes of output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = printable(line.decode(errors="replace")).rstrip()
            if text:
                self._kept.append(text)
            if shown := self._step(text):
                self._say(shown)

    def last(self) -> list[str]:
        """Return the last lines, including an unfinished one."""
        self.take(b"\n")
        return list(self._kept)
