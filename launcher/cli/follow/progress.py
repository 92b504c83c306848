"""The progress of a run, computed from its events."""

from __future__ import annotations

import time
from typing import NamedTuple

from launcher.cli.output.figures import MAX_S, clock_text, value_text
from launcher.metrics.curves import HOST, host_points, numbers
from launcher.values.record import Event

_SHOWN = {"loss": "loss {}", "grad_norm": "grad {}", "learning_rate": "lr {}", "tokens_per_s": "{} tok/s"}
_WEIGHTS = {"loss": 8, "grad_norm": 4, "learning_rate": 3, "tokens_per_s": 5}
_CARD_WEIGHTS = (2, 1)
_MAX_WEIGHT = 9


class Figure(NamedTuple):
    """A figure in the live bar. If room is short, figures of the least weight are left out."""

    text: str
    weight: int


class Progress:
    """The step, the values and the pace of a run, computed from its events."""

    def __init__(self, run: str, steps: int | None) -> None:
        self.run = run
        self.steps = steps
        self.step: int | None = None
        self._step_attempt: int | None = None
        self.values: dict[str, float] = {}
        self._host_event: Event | None = None
        self.phase: str | None = None
        self.phase_share = 0.0
        self.attempt: int | None = None
        self.purpose: str | None = None  # of a trial in a verification; None for the training itself
        self._first: tuple[float, int] | None = None
        self._last_time = 0.0
        self._span: tuple[float, float] | None = None  # first and last event, by the host's clock
        self._heard_s = time.monotonic()
        self._behind: tuple[int | None, dict[str, float]] | None = (
            None  # step and values of the history while it is read
        )

    def hold(self, step: int | None, values: dict[str, float]) -> None:
        """Keep the run's current step and values until `release`, while its history is read."""
        self.step, self.values, self._behind = step, values, (None, {})

    @property
    def is_held(self) -> bool:
        """Whether the current step and values are kept while the history is read."""
        return self._behind is not None

    def release(self) -> None:
        """Continue with the step and values at the end of the history."""
        if self._behind is not None:
            (step, values), self._behind = self._behind, None
            self.step = self.step if step is None else step
            self.values.update(values)

    def take(self, event: Event) -> bool:
        """Update the progress by an event. Return whether it was a metric of rank 0."""
        self._span = (self._span[0] if self._span else event.time, event.time)
        self._heard_s = time.monotonic()
        if event.kind == "begin" and (steps := count(event.values.get("steps"))):
            self.steps = steps
            self._first = None
        if event.kind == "progress":
            done, total = count(event.values.get("done")), count(event.values.get("total"))
            if done is not None and total:
                self.phase = None if done >= total else str(event.values.get("stage"))
                self.phase_share = min(1.0, done / total)
        if event.kind == "state" and event.values.get("state") == "running":
            self._first, self.phase = None, None
            self.attempt = event.attempt
        if event.kind == "host":
            self._host_event = event
        measured = numbers(event.values) if event.kind == "metric" and event.rank == 0 else {}
        if not measured:
            return False
        if self._behind is not None:
            step, values = self._behind
            self._behind = (step if event.step is None else event.step, values)
            values.update(measured)
        else:
            if (
                event.step is not None or self._step_attempt != event.attempt
            ):  # this attempt may print no steps
                self.step, self._step_attempt = event.step, event.attempt
            self.values.update(measured)
        if "loss" in event.values and event.step is not None:
            self.phase = None
            self._first = self._first or (event.time, event.step)
            self._last_time = event.time
        return True

    def elapsed_s(self) -> float:
        """Return the seconds since the run's first event.

        The host's clock counts up to the last event, this machine's clock after it.
        """
        began, last = self._span or (0.0, 0.0)
        return min(max(0.0, last - began), MAX_S) + time.monotonic() - self._heard_s

    def eta_s(self) -> float | None:
        """Return the seconds to the last step at the average pace so far, None while unknown."""
        if self._first is None or self.step is None or not self.steps or self.step <= self._first[1]:
            return None
        pace = (self._last_time - self._first[0]) / (self.step - self._first[1])
        return max(0.0, pace * (self.steps - self.step))

    def words(self, *more: str) -> list[str]:
        """Return the values with their labels, then `more`, then the time left."""
        return [*(figure.text for figure in self._values()), *more, *(figure.text for figure in self._left())]

    def figures(self) -> list[Figure]:
        """Return the step, the values, the use of the cards, and the time left."""
        cards = map(Figure, self.card_words(), _CARD_WEIGHTS)
        return [Figure(self.where(), _MAX_WEIGHT), *self._values(), *cards, *self._left()]

    def _values(self) -> list[Figure]:
        return [
            Figure(words.format(value_text(self.values[name])), _WEIGHTS[name])
            for name, words in _SHOWN.items()
            if name in self.values
        ]

    def _left(self) -> list[Figure]:
        eta = self.eta_s()
        return [Figure(f"eta {clock_text(eta)}", _MAX_WEIGHT)] if eta is not None else []

    def card_words(self) -> list[str]:
        """Return the mean use of the run's cards and their total memory in use."""
        host = self._host()
        uses = [value for name, value in host.items() if name.endswith(".use_percent")]
        sizes = [value for name, value in host.items() if name.endswith(".memory_gb")]
        cards = max(len(uses), len(sizes))
        words = (
            [f"{'card' if cards == 1 else f'{cards} cards'} {sum(uses) / len(uses):.0f} %"] if uses else []
        )
        return [*words, *([f"{sum(sizes):.1f} GB"] if sizes else [])]

    def _host(self) -> dict[str, float]:
        """Return the host's last figures."""
        found = host_points(self._host_event) if self._host_event is not None else []
        return {point.name.removeprefix(HOST): point.value for point in found}

    def where(self) -> str:
        """Return the step, and the number of steps if known: 412/900."""
        return "-" if self.step is None else self.place(self.step)

    def place(self, step: int) -> str:
        """Return a step with the number of steps, if known."""
        return f"{step}/{self.steps}" if self.steps else str(step)


def count(value: object) -> int | None:
    """Return a count that a script reported, None if the value cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53 else None
