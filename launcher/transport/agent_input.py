"""The client's input to the agent while a program runs on the host: the request to end it, or typed keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

POLL_S = 0.1


class Window(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int
    columns: int


class Keyboard(Protocol):
    """A local terminal whose user types for a program on the host. `kind` is as in TERM."""

    kind: str

    def window(self) -> Window:
        """Return the size of its window."""

    def read(self, wait_s: float) -> bytes:
        """Return the typed bytes, waiting up to `wait_s` seconds for them."""


MessageSource = Callable[[threading.Event], Iterator[bytes]]
"""Yields the next messages to the agent until the event reports the program's end. A message may be empty."""


def encode_message(verb: str, **values: int) -> bytes:
    """Return a message to send to the agent while a program runs."""
    return json.dumps({"verb": verb, **values}).encode() + b"\n"


def until(is_enough: Callable[[], bool]) -> MessageSource:
    """Ask the agent to end the program once `is_enough` returns true."""

    def words(is_over: threading.Event) -> Iterator[bytes]:
        is_said = False
        while not is_over.wait(POLL_S):
            is_due = not is_said and is_enough()
            is_said = is_said or is_due
            yield encode_message("end") if is_due else b""

    return words


def typing(keyboard: Keyboard, first: Window) -> MessageSource:
    """Send the agent the typed keys and each new window size. `first` is the size that the agent knows."""

    def words(is_over: threading.Event) -> Iterator[bytes]:
        known = first
        while not is_over.is_set():
            typed = keyboard.read(POLL_S)
            yield encode_message("type", size=len(typed)) + typed if typed else b""
            if (now := keyboard.window()) != known:
                known = now
                yield encode_message("window", **now._asdict())

    return words


ONLY_LISTENING = until(lambda: False)
"""Send the agent nothing: it runs the program to its end."""
