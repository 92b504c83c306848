"""When an attempt has to stop: user requests, host shutdown, time limit, end of the rental, deadlines.

A wish is the user's request in the run's wish file: run, stop or cancel. A limit of the run's time counts as one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence

from ..liveness import run_state
from ..record.files import read_json
from ..record.rundir import SESSION_LIMIT, WISHES, Run, rent_in
from ..system import process
from .fence import Fence

if TYPE_CHECKING:
    from ..record.run_records import RecordedRuntime, RentalEndRecord

WISH_S = 0.5  # between looks at the wish
TIME_LIMIT = "time-limit"
OF_SEGMENT = "LAUNCH_SEGMENT"
"""Set if the agent runs in one session of a service."""
RENT_OVER = "client"
"""The end of its machine's rental: the run saves, and waits for a client to download its checkpoint."""


def reason_of(wish: str) -> str:
    """Return the reason to record for a run that a wish ended."""
    return WISHES.get(wish) or TIME_LIMIT


def shutdown_reason(run: Run, terminations: Sequence[int]) -> str:
    """Return the reason of a run whose agent got signals to leave, without a wish.

    After SIGUSR1, and in a service, the reason is the end of the session. Otherwise it is that of the runtime.
    """
    if signal.SIGUSR1 in terminations or OF_SEGMENT in os.environ:
        return SESSION_LIMIT
    return run_state.probe_of(run).shutdown_reason


class RunTime:
    """The running time of a run over all its attempts, and the time that remains."""

    def __init__(
        self, ran_before_s: float, limit_s: Optional[float], rent_ends_s: Callable[[], float]
    ) -> None:
        """Start the clock of this attempt. Without `limit_s` only the end of a rental limits the run.

        `rent_ends_s` returns the end of the rental by the monotonic clock: a rental may be extended.
        """
        self._ran_before_s = ran_before_s
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._paused_s: Optional[float] = None
        self._rent_ends_s = rent_ends_s

    @property
    def took_s(self) -> float:
        """Seconds that the run has run over all its attempts."""
        now_s = time.monotonic() if self._paused_s is None else self._paused_s
        return self._ran_before_s + now_s - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds that the run may still run."""
        return min(self._limit_left_s, self._rent_left_s)

    @property
    def limit(self) -> str:
        """The limit that ends the run first, as a wish: its time limit, or the end of its machine's rental."""
        return RENT_OVER if self._rent_left_s < self._limit_left_s else TIME_LIMIT

    @property
    def _limit_left_s(self) -> float:
        return float("inf") if self._limit_s is None else self._limit_s - self.took_s

    @property
    def _rent_left_s(self) -> float:
        return self._rent_ends_s() - time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude a wait from the running time."""
        self._paused_s = began_s = time.monotonic()
        try:
            yield
        finally:
            self._paused_s = None
            self._began_s += time.monotonic() - began_s


class RentEnd:
    """The end of this machine's rental: as recorded when the run was prepared, or as extended since then."""

    def __init__(self, run: Run, runtime: RecordedRuntime) -> None:
        """Start with the end in the run's record."""
        self._run, self._look_again_s = run, 0.0
        self._told = rent_in(runtime, "rented_")
        self._ends_s = _ends_s(self._told)

    def ends_s(self) -> float:
        """Return the monotonic clock's value at the end of the rental; infinity without a rental."""
        now_s = time.monotonic()
        if self._told and now_s >= self._look_again_s:
            self._look_again_s = now_s + WISH_S
            told = rent_in(read_json(self._run.rented)) or self._told
            if told != self._told:
                self._told, self._ends_s = told, _ends_s(told)
        return self._ends_s


def _ends_s(rent: RentalEndRecord) -> float:
    """Return the end of a rental by the monotonic clock.

    It is computed from the boot clock, or after a reboot from the wall clock, which is read once.
    """
    if "until" not in rent:
        return float("inf")
    if rent.get("boot") == process.boot_id() and "uptime" in rent:
        left_s = rent["uptime"] - time.clock_gettime(time.CLOCK_BOOTTIME)
    else:
        left_s = rent["until"] - time.time()  # after a reboot no other clock is left
    return time.monotonic() + float(left_s)


class StartInterruption:
    """Whether to give up work before the command starts.

    The causes are a host shutdown, the user's wish, or another agent that has continued the run.
    """

    def __init__(self, run: Run, fence: Fence, terminations: List[int], on_look: Callable[[], None]) -> None:
        """Store the sources. Each check of the fence and the wish also calls `on_look`."""
        self._run = run
        self._fence = fence
        self._terminations = terminations
        self._on_look = on_look
        self._look_again_s = time.monotonic() + WISH_S
        self._is_due = False

    def is_due(self) -> bool:
        """Whether to give up. Once true, it stays true."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + WISH_S
            self._on_look()
            self._is_due = self._is_due or self._fence.look() or self._run.read_wish() != "run"
        return self._is_due or bool(self._terminations)

    def pause(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds, or until giving up is due."""
        deadline_s = time.monotonic() + pause_s
        while time.monotonic() < deadline_s and not self.is_due():
            time.sleep(0.1)


class Stopping:
    """Whether the command was asked to stop, by which wish, and when it will be killed."""

    def __init__(self, run: Run, terminations: List[int], may_go_on: Callable[[], bool]) -> None:
        """Start without a request. `terminations` are the signals that the host has sent to this agent.

        SIGUSR1 means that the time is nearly up. A command that can continue later (`may_go_on`) is then asked to
        stop; any other command uses all of its time.
        """
        self._run = run
        self._terminations = terminations
        self._may_go_on = may_go_on
        self.wish = "run"
        self.is_asked = False
        self._deadline_s = float("inf")
        self._kill_at_s = float("inf")
        self._is_killed = False
        self._look_again_s = 0.0

    @property
    def shutdown_reason(self) -> str:
        """Why the host, its scheduler or its service asked this agent to leave."""
        return shutdown_reason(self._run, self._terminations)

    def begins(self, grace_s: float, run_time: RunTime) -> bool:
        """Look for a new request. Return whether stopping begins now.

        The command then has `grace_s` seconds, unless the wish is to cancel. Stopping also begins once the
        remaining running time is at most `grace_s`.
        """
        now_s = time.monotonic()
        is_due = now_s >= self._look_again_s
        if not self.is_asked and (self._is_told() or is_due):
            self._look_again_s = now_s + WISH_S
            wish = self._run.read_wish()
            if wish == "run" and run_time.left_s <= grace_s:
                wish = run_time.limit
            if wish != "run" or self._is_told():
                self._ask(wish, grace_s)
                return True
        elif self.wish in ("stop", TIME_LIMIT, RENT_OVER) and is_due:
            self._look_again_s = now_s + WISH_S
            if self._run.read_wish() == "cancel":
                self._ask("cancel", 0.0)
        return False

    def _is_told(self) -> bool:
        if not self._terminations:
            return False
        return any(number != signal.SIGUSR1 for number in self._terminations) or self._may_go_on()

    def _ask(self, wish: str, grace_s: float) -> None:
        self.wish = wish
        self.is_asked = True
        self._deadline_s = time.monotonic() + (0.0 if wish == "cancel" else grace_s)

    def give_up(self, grace_s: float) -> None:
        """Have the command killed after a grace period, because the attempt has failed."""
        self._kill_at_s = time.monotonic() + grace_s

    def must_kill(self) -> bool:
        """Whether the command has to be killed now. True only once."""
        is_overdue = time.monotonic() >= min(self._deadline_s, self._kill_at_s)
        if not is_overdue or self._is_killed:
            return False
        self._is_killed = True
        return True

    @property
    def grace_left_s(self) -> Optional[float]:
        """The remaining grace of a request in seconds; None without a request."""
        return max(0.0, self._deadline_s - time.monotonic()) if self.is_asked else None
