"""The pace of calls to a service that counts them: all clients of this user on this machine share it, through two files.

A client holds the lock of a file from before its call until after the answer, so whenever the service counts the call, it
is later than the one before by the whole spacing. Files keep the time of the last call: a client that was killed in the
middle of one leaves its mark there, and the next client waits as if that call were made now.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from platformdirs.unix import Unix

from launcher.agent.record import strict_json
from launcher.base.clock import Clock, look_again_after

MOST_WAIT_S = 600.0
"""No mark makes a client wait longer."""
STUCK_S = MOST_WAIT_S + 300.0
"""A holder of a lock may wait as long as that, and then make its call."""
LOOK_S = 0.01
Waits = Callable[[float], None]
"""Called with the seconds for which a call has to wait at least; with 0 once it waits no more."""
FIRST_BACK_OFF_S, MOST_BACK_OFF_S = 10.0, 120.0
"""What SkyPilot waits after a first 429, and our largest wait."""


def say_nothing(_wait_s: float) -> None:
    """Wait without a word."""


def usual_pace(base: str, clock: Clock) -> CallPace:
    """Return the pace of a service that all clients of this user share.

    It goes by the service, not by the key: two keys may be of one account.
    """
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", base.partition("://")[2]).strip("-")
    return CallPace(Unix("launch").user_state_path / "pace", name, clock)


class CallPace:
    """Lets calls through one at a time: `request_s` apart, and launches `launch_s` apart."""

    def __init__(
        self, folder: Path, name: str, clock: Clock, *, request_s: float = 1.0, launch_s: float = 12.0
    ) -> None:
        """Share the pace with all who name the same folder and name."""
        self._folder, self._name, self._clock = folder, name, clock
        self._request_s, self._launch_s = request_s, launch_s

    @contextmanager
    def turn(self, *, is_launch: bool = False, waits: Waits = say_nothing) -> Iterator[CallTurn]:
        """Wait for this call's turn; the call is made inside. `waits` is called if a launch has to, and before its call."""
        with ExitStack() as stack:
            if is_launch:
                stack.enter_context(self._gate("launches", self._launch_s, waits))
            turn = stack.enter_context(self._gate("requests", self._request_s))
            if is_launch:
                waits(0.0)
            yield turn

    @contextmanager
    def _gate(self, what: str, spacing_s: float, waits: Waits = say_nothing) -> Iterator[CallTurn]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._folder / f"{self._name}.{what}", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # nothing can be shared: it keeps its distance to its own calls at least
            self._clock.sleep(spacing_s)
            yield CallTurn()
            return
        try:
            _lock(descriptor, lambda: waits(spacing_s))
            until = _Mark.read(descriptor).free_at(self._clock.now(), spacing_s)
            while (wait_s := until - self._clock.now()) > 0:
                waits(wait_s)
                self._clock.sleep(wait_s)
            _Mark(self._clock.now(), 0.0, is_under_way=True).write(descriptor)
            turn = CallTurn()
            try:
                yield turn
            finally:
                now = self._clock.now()
                _Mark(now, now + turn.hold_s, is_under_way=False).write(descriptor)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, is_taken: Callable[[], None]) -> None:
    """Wait for the lock of a gate, but no longer than STUCK_S while nobody makes a call: its holder may have been stopped.

    `is_taken` is called if another holds it.

    A call without the lock may come too early, which is refused and made again; one that is never made may cost money.
    """
    mark, since, is_first = b"", time.monotonic(), True
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if is_first:
                is_taken()
            is_first = False
        if (now := os.pread(descriptor, 4096, 0)) != mark:
            mark, since = now, time.monotonic()
        if time.monotonic() - since > STUCK_S:
            return
        look_again_after(LOOK_S)


class CallTurn:
    """One call's turn."""

    hold_s = 0.0

    def hold_off(self, seconds: float) -> None:
        """Let no client call before so many seconds have passed."""
        self.hold_s = seconds


def back_off_s(refusals: int, asked_s: float | None, draw: random.Random) -> float:
    """Return how long to wait after so many refusals in a row, at least as long as the service asks for.

    It is drawn, so that clients on several machines do not come back at the same moment.
    """
    usual: float = min(FIRST_BACK_OFF_S * 2.0 ** (refusals - 1), MOST_BACK_OFF_S)
    return max(asked_s or 0.0, usual * draw.uniform(0.5, 1.0)) + draw.uniform(0.0, 1.0)


class _Mark:
    """What the file of a gate says: when the last call was, until when none is wanted, and whether one is under way.

    Times are of the boot clock. A mark of a later time is one of an earlier boot: its call is taken for one of now.
    """

    def __init__(self, last: float, hold: float, *, is_under_way: bool) -> None:
        self._last, self._hold, self._is_under_way = last, hold, is_under_way

    @classmethod
    def read(cls, descriptor: int) -> _Mark:
        text = os.pread(descriptor, 4096, 0)
        if not text:
            return cls(float("-inf"), 0.0, is_under_way=False)
        try:
            last, hold, is_under_way = strict_json.decode(text)
            return cls(float(last), float(hold), is_under_way=is_under_way is True)
        except (ValueError, TypeError, OverflowError):
            return cls(0.0, 0.0, is_under_way=True)  # a write that was cut off: there was a call

    def free_at(self, now: float, spacing_s: float) -> float:
        """Return when the next call may be made."""
        last = now if self._is_under_way else min(self._last, now)
        return last + max(spacing_s, min(self._hold - self._last, MOST_WAIT_S))

    def write(self, descriptor: int) -> None:
        data = json.dumps([self._last, self._hold, self._is_under_way]).encode()
        with suppress(OSError):  # a full disk keeps no call
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
