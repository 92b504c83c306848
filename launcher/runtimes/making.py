"""What the making of an image and of an environment have in common: one client at a time, and what a program prints."""

from __future__ import annotations

import base64
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from launcher.errors import ConnectionLostError
from launcher.hosts import Agent
from launcher.hosts.agent import Answer, printable
from launcher.runtimes.runtime import Say

POLL_S = 0.5


@contextlib.contextmanager
def alone(agent: Agent, lock: str, what: str, say: Say, **release: Any) -> Iterator[Answer]:
    """Hold a lock of the host, waited for while another launch makes the same; give the agent's answer.

    `release` is what the agent is told beside, when it is let go. The lock goes with the connection, too.
    """
    while not (answer := agent.call("hold", name=lock)).values.get("held"):
        say(f"{what}: another launch makes it")
        time.sleep(POLL_S)
    try:
        yield answer
    finally:
        with contextlib.suppress(ConnectionLostError):
            agent.call("hold", name=lock, release=True, **release)


def encoded(files: dict[str, bytes]) -> dict[str, str]:
    """Return files as they travel in JSON."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


class Lines:
    """What a program prints, line by line: its steps are shown, its last words kept."""

    def __init__(self, say: Say, step: Callable[[str], str | None], kept: int) -> None:
        """Show what `step` makes of a line, if anything, and keep so many lines."""
        self._say = say
        self._step = step
        self._rest = b""
        self._kept: deque[str] = deque(maxlen=kept)

    def take(self, data: bytes) -> None:
        """Take some bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = printable(line.decode(errors="replace")).rstrip()
            if text:
                self._kept.append(text)
            if shown := self._step(text):
                self._say(shown)

    def last(self) -> list[str]:
        """Return the last lines, the unfinished one too."""
        self.take(b"\n")
        return list(self._kept)
