"""Streams and events of a card: on a CPU each operation ends before its call returns, so operations run in order."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Iterator, Optional


class Event:
    """An event: the moment of its `record`."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._at_s: Optional[float] = None

    def record(self, _stream: Any = None) -> None:
        """Note the time."""
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two recorded events. Raises RuntimeError if one was not recorded."""
        if self._at_s is None or end._at_s is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._at_s - self._at_s) * 1000

    def query(self) -> bool:
        """Return True: all work before the event has ended."""
        return True

    def synchronize(self) -> None:
        """Return at once: all work has ended."""

    def wait(self, _stream: Any = None) -> None:
        """Return at once: all work has ended."""


class Stream:
    """A stream: its work runs at once."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass

    def query(self) -> bool:
        """Return True: all work in the stream has ended."""
        return True

    def is_capturing(self) -> bool:
        """Return False: no graph records the stream."""
        return False

    def record_event(self, event: Optional[Event] = None) -> Event:
        """Return an event, recorded now."""
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        """Return at once: all work has ended."""

    def wait_event(self, _event: Event) -> None:
        """Return at once: all work has ended."""

    def wait_stream(self, _stream: Stream) -> None:
        """Return at once: all work has ended."""


@contextlib.contextmanager
def entered(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    """Return a context that changes nothing."""
    yield
