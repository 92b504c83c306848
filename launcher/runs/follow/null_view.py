"""A view that shows nothing, for runs that a command launches internally."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.runs.follow.view import NullStage

if TYPE_CHECKING:
    from launcher.copy.record_sync import News
    from launcher.errors import HostError
    from launcher.runs.follow.view import Result, Stage
    from launcher.values.plan import Finding, Plan
    from launcher.values.record import Event, Parent, PlanSummary, RunState, Summary
    from launcher.values.upload_selection import UploadSelection


class NullView:
    """Shows nothing; `losses` counts the lost links."""

    losses = 0

    def head(self, plan: Plan) -> None:
        """Show nothing."""

    def cargo(self, cargo: UploadSelection) -> None:
        """Show nothing."""

    def agrees(self, question: str) -> bool | None:
        """Return None, because no user is asked."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Yield a stage that is not shown."""
        yield NullStage()

    def note(self, text: str) -> None:
        """Show nothing."""

    def finding(self, finding: Finding) -> None:
        """Show nothing."""

    def started(self, run: str, job_id: str | None, *, is_asked: bool) -> None:
        """Show nothing."""

    def ahead(self, summary: Summary, plan: PlanSummary) -> None:
        """Show nothing."""

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Show nothing."""

    def continues(self, run: str, parent: Parent) -> None:
        """Show nothing."""

    def news(self, news: News) -> None:
        """Show nothing."""

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Count the loss."""
        self.losses += 1

    def back(self) -> None:
        """Show nothing."""

    def came_home(self, run: str, files: Mapping[Path, int]) -> None:
        """Show nothing."""

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""
