"""The rate limit for calls to a service, shared by all clients of this user on this machine.

Two files, the *gates*, keep the limit: one for launches, one for all calls. A client holds a gate's lock from
before its call until after the answer. So the service sees calls at least the spacing apart, whether it counts
a call when it arrives or when it is answered. A gate stores a *mark*: the time of the last call, the end of a
pause after it, and whether the call is still in progress. If a client is killed during a call, its mark
remains, and the next client waits as if that call were made now.
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

MAX_WAIT_S = 600.0
"""The longest wait that a mark can cause."""
STUCK_S = MAX_WAIT_S + 300.0
"""A client stops waiting for a lock whose file is unchanged for this long, in seconds. A working holder waits less."""
LOOK_S = 0.01
Waits = Callable[[float], None]
"""Called with the minimum number of seconds that a call must wait, and with 0 when the wait ends."""
FIRST_BACK_OFF_S, MAX_BACK_OFF_S = 10.0, 120.0
"""The wait after a first 429, taken from SkyPilot, and the longest wait, in seconds."""


def say_nothing(_wait_s: float) -> None:
    """Ignore the wait."""


def usual_pace(base: str, clock: Clock) -> RateLimit:
    """Return the rate limit that all clients of this user share for a service.

    It depends on the service's address and not on the key, because two keys may belong to one account.
    """
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", base.partition("://")[2]).strip("-")
    return RateLimit(Unix("launch").user_state_path / "pace", name, clock)


class RateLimit:
    """Lets one call through at a time: calls `request_s` apart, launches `launch_s` apart."""

    def __init__(
        self, folder: Path, name: str, clock: Clock, *, request_s: float = 1.0, launch_s: float = 12.0
    ) -> None:
        """Share the limit with all clients that use the same folder and name."""
        self._folder, self._name, self._clock = folder, name, clock
        self._request_s, self._launch_s = request_s, launch_s

    @contextmanager
    def turn(self, *, is_launch: bool = False, waits: Waits = say_nothing) -> Iterator[CallTurn]:
        """Wait for this call's turn. Make the call inside the block.

        `waits` is called when a launch must wait, and with 0 just before its call.
        """
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
        except OSError:  # no file to share: space at least this client's own calls
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
    """Wait for the lock of a gate. Give up once the file is unchanged for STUCK_S: its holder may be stopped.

    `is_taken` is called if another client holds the lock.

    A call without the lock may come too early; then the service refuses it and it is repeated. A call that is
    never made may cost money.
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
        """Let no client call for this many seconds after the answer."""
        self.hold_s = seconds


def back_off_s(refusals: int, asked_s: float | None, draw: random.Random) -> float:
    """Return the wait in seconds after a number of refusals in a row, at least the `asked_s` of the service.

    The wait is random, so that clients on several machines do not retry at the same moment.
    """
    usual: float = min(FIRST_BACK_OFF_S * 2.0 ** (refusals - 1), MAX_BACK_OFF_S)
    return max(asked_s or 0.0, usual * draw.uniform(0.5, 1.0)) + draw.uniform(0.0, 1.0)


class _Mark:
    """The content of a gate's file: the last call, the end of the pause after it, and whether it is in progress.

    Times are from the boot clock. A mark in the future comes from an earlier boot; its call is treated as if
    made now.
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
            return cls(0.0, 0.0, is_under_way=True)  # a write that was cut off: a call was made

    def free_at(self, now: float, spacing_s: float) -> float:
        """Return the earliest time of the next call."""
        last = now if self._is_under_way else min(self._last, now)
        return last + max(spacing_s, min(self._hold - self._last, MAX_WAIT_S))

    def write(self, descriptor: int) -> None:
        data = json.dumps([self._last, self._hold, self._is_under_way]).encode()
        with suppress(OSError):  # a full disk must not prevent a call
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
