"""What is known of an item of a batch while it is launched and followed: the view of its run, read by the batch's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.metrics.curves import numbers
from launcher.runs.follow.evidence import why_waiting
from launcher.runs.follow.null_view import SilentView

if TYPE_CHECKING:
    from launcher.base.meter import Moved
    from launcher.copy.record_sync import News
    from launcher.errors import HostError
    from launcher.runs.follow.view import Result, Stage
    from launcher.values.plan import Finding
    from launcher.values.record import Event, PlanSummary, RunState


class _ItemStage:
    """A stage whose progress is what the item does just now."""

    def __init__(self, view: ItemView, name: str) -> None:
        self.text: str | None = None
        self._view, self._name = view, name

    def progress(self, step: str, /) -> None:
        """Note how far it has come."""
        self._view.doing = f"{self._name}: {step}"

    def moved(self, moved: Moved, /) -> None:
        """Note nothing: the stage's name says enough in a table."""


class ItemView(SilentView):
    """Takes what a launch and a run show, and keeps what a table needs of it. Read from another thread, written from one.

    `doing` is the stage of a launch; `state` the run's last one; `loss` and `step` its last; `seen` when it was last heard of.
    `has_rented`: this process looks after its rented machine.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        """Note what is said in a log, line by line."""
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
        """Why its run waits to be started, in the words of what starts it."""
        return None if self.state is None else why_waiting(self.state)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Note what the item does, and at its end what that came to."""
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
        """Put it into the log."""
        self._log(text)

    def finding(self, finding: Finding) -> None:
        """Put it into the log."""
        self._log(finding.message if finding.mend is None else f"{finding.message}   {finding.mend}")

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Begin with what was fetched before."""
        self.steps = plan.steps
        for event in events:
            self._take(event)

    def news(self, news: News) -> None:
        """Take the state, and the last step and loss."""
        self.state, self.seen, self.lost_for = news.state, time.time(), None
        for event in news.events:
            self._take(event)

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Note that the link is lost."""
        super().lost(error, tries, wait_s)
        self.lost_for = str(error).splitlines()[0]
        if tries == 1:
            self._log(f"link lost: {self.lost_for}")

    def back(self) -> None:
        """Note that it is back."""
        self.lost_for = None
        self._log("the link is back")

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Take how it ended."""
        self.state, self.result = state, result

    def _take(self, event: Event) -> None:
        if event.kind != "metric":
            return
        self.step = event.step if event.step is not None else self.step
        self.loss = numbers(event.values).get("loss", self.loss)
