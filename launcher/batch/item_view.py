"""The view of an item's run during its launch and execution. The batch's display reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.metrics.curves import numbers
from launcher.runs.follow.evidence import why_waiting
from launcher.runs.follow.view import NullView

if TYPE_CHECKING:
    from launcher.base.meter import Moved
    from launcher.copy.record_sync import News
    from launcher.errors import HostError
    from launcher.runs.follow.view import Result, Stage
    from launcher.values.plan import Finding
    from launcher.values.record import Event, PlanSummary, RunState


class _ItemStage:
    """A stage whose progress is the item's current activity."""

    def __init__(self, view: ItemView, name: str) -> None:
        self.text: str | None = None
        self._view, self._name = view, name

    def progress(self, step: str, /) -> None:
        """Record the progress."""
        self._view.doing = f"{self._name}: {step}"

    def moved(self, moved: Moved, /) -> None:
        """Ignore the numbers: a table shows only the stage's name."""


class ItemView(NullView):
    """A view that keeps the values of a launch and its run for a table. One thread writes, another one reads.

    `doing` is the stage of a launch. `state`, `loss` and `step` are the run's latest; `seen` is the time of
    its host's last answer. `has_rented`: this process manages its rented machine.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        """Write messages to a log, line by line."""
        self._log = log
        self.doing: str | None = None
        self.state: RunState | None = None
        self.step: int | None = None
        self.steps: int | None = None
        self.loss: float | None = None
        self.seen: float | None = None
        self.lost_for: str | None = None
        self.has_rented = False
        self.result: Result | None = None

    @property
    def waits_for(self) -> str | None:
        """The reason why the run has not started yet, as reported by its queue or service; None if it does not wait."""
        return None if self.state is None else why_waiting(self.state)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Record the stage as the item's activity, and log the stage's result at its end."""
        stage = _ItemStage(self, name)
        began = time.monotonic()
        self.doing = name
        try:
            yield stage
            if stage.text is not None:
                self._log(f"{name}  {time.monotonic() - began:.1f} s  {stage.text}")
        finally:
            self.doing = None

    def note(self, text: str) -> None:
        """Write the text to the log."""
        self._log(text)

    def finding(self, finding: Finding) -> None:
        """Write the finding to the log."""
        self._log(finding.message if finding.mend is None else f"{finding.message}   {finding.mend}")

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Read the metrics of the run's earlier events."""
        self.steps = plan.steps
        for event in events:
            self._read_metric(event)

    def news(self, news: News) -> None:
        """Keep the state, and the last step and loss."""
        self.state, self.seen, self.lost_for = news.state, time.time(), None
        for event in news.events:
            self._read_metric(event)

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Record the lost link."""
        super().lost(error, tries, wait_s)
        self.lost_for = str(error).splitlines()[0]
        if tries == 1:
            self._log(f"link lost: {self.lost_for}")

    def back(self) -> None:
        """Record that the link is back."""
        self.lost_for = None
        self._log("the link is back")

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Keep the final state and result."""
        self.state, self.result = state, result

    def _read_metric(self, event: Event) -> None:
        if event.kind != "metric":
            return
        self.step = event.step if event.step is not None else self.step
        self.loss = numbers(event.values).get("loss", self.loss)
