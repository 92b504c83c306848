"""A limit to the time of a check: a source that was made to be slow is not checked, instead of holding up a launch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LIMIT = threading.local()


class TooSlowError(Exception):
    """A check took longer than its limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Let `tick` raise TooSlowError once this thread has computed for so long. Within another limit, that counts."""
    outer = getattr(_LIMIT, "end", None)
    if outer is None:
        _LIMIT.end = time.thread_time() + seconds
    try:
        yield
    finally:
        _LIMIT.end = outer


def tick() -> None:
    """Raise TooSlowError after the limit of this thread, if it has one. Called wherever work can grow with a source."""
    end = getattr(_LIMIT, "end", None)
    if end is not None and time.thread_time() > end:
        raise TooSlowError
