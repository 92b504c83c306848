"""Streams and events of a card: on a CPU each operation is over when its call returns, so all of them are in order."""

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
        """Everything before it is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, _stream: Any = None) -> None:
        """Wait for nothing."""


class Stream:
    """A stream: what is given to it is done at once."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass

    def query(self) -> bool:
        """Everything in it is done."""
        return True

    def is_capturing(self) -> bool:
        """It is recorded into no graph."""
        return False

    def record_event(self, event: Optional[Event] = None) -> Event:
        """Return an event of now."""
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_event(self, _event: Event) -> None:
        """Wait for nothing."""

    def wait_stream(self, _stream: Stream) -> None:
        """Wait for nothing."""


@contextlib.contextmanager
def entered(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    """Return a context that changes nothing."""
    yield
