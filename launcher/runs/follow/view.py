"""The display of a run to the user who started or follows it.

A terminal, a pipe and --json each have a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from launcher.base.meter import Moved
    from launcher.copy.record_sync import News
    from launcher.errors import HostError
    from launcher.rental.records import RentCost
    from launcher.values.plan import Finding, Plan
    from launcher.values.record import Event, Parent, PlanSummary, RunState, Summary
    from launcher.values.upload_selection import UploadSelection


class Stage(Protocol):
    """A running stage of a launch; `text` is its result, shown at its end, or None if it leaves no line."""

    text: str | None

    def progress(self, step: str, /) -> None:
        """Show the stage's progress."""

    def moved(self, moved: Moved, /) -> None:
        """Show the progress of a transfer. This may be called ten times a second."""


class NullStage:
    """A stage that is not shown."""

    text: str | None = None

    def progress(self, step: str, /) -> None:
        """Show nothing."""

    def moved(self, moved: Moved, /) -> None:
        """Show nothing."""


class View:
    """Shows a launch and a run to the user. This class shows nothing: a subclass overrides the methods that it needs."""

    def head(self, plan: Plan) -> None:
        """Show the job, host, card and precision."""

    def selection(self, selection: UploadSelection) -> None:
        """Show the excluded files that the user may need."""

    def agrees(self, question: str) -> bool | None:
        """Ask the user; return the answer, None without a terminal."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Show a stage while it lasts, then its time and text."""
        yield NullStage()

    def note(self, text: str) -> None:
        """Show a note outside of a stage."""

    def finding(self, finding: Finding) -> None:
        """Show a finding of the gate."""

    def started(self, run: str, job_id: str | None, *, is_asked: bool) -> None:
        """Show the id of a run that continues unattended, and the id of its job in Slurm, if it has one.

        `is_asked`: the user asked for this with --detach; otherwise the launch was interrupted as the run
        began.
        """

    def ahead(self, summary: Summary, plan: PlanSummary) -> None:
        """Show the present state of a run; its history, which may be long, is read next."""

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Begin to show a run; `events` are those fetched before."""

    def continues(self, run: str, parent: Parent) -> None:
        """Show the parent of this run, and the step from which it continues."""

    def news(self, news: News) -> None:
        """Show the new output, events and state of a run from one answer of its host."""

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Report that the link is lost, which does not fail the run."""

    def back(self) -> None:
        """Report that the link is back."""

    def came_home(self, run: str, files: Mapping[Path, int]) -> None:
        """Show the downloaded files of a run, with their sizes in bytes."""

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Show the end of the run and its results."""

    def close(self) -> None:
        """Leave the terminal as it was. The follower always calls it."""


class NullView(View):
    """Shows nothing, for runs that a command launches internally. `losses` counts the lost links."""

    losses = 0

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Count the loss."""
        self.losses += 1


class Result(NamedTuple):
    """A run's results on the client, and its duration on the host's clock (None if that is not recorded).

    Time in a scheduler's queue does not count. `home` are the downloaded files, with their sizes in bytes.
    `adapted` is the command that would have fixed a failure of precision, `checked` the one that mends the bug of the
    script behind a failure. `folder` is the run's folder on the
    client. `is_rehearsed`: a card's plan was tried on a CPU, and the script took values from it or ran as if
    the card were present. `unsound`: the reason why the used precision is not sound on the card.
    `new_run` is the run that continues this one elsewhere. `rents_at` is the account of its rented machine,
    whose rental has ended. `rent` is the cost of its rented machines. `is_job`: it is a job of a Slurm
    cluster.
    """

    adapter: Path | None
    home: dict[Path, int]
    picture: Path | None
    metrics: dict[str, float]
    first_loss: float | None
    seconds: float | None
    adapted: str | None = None
    checked: str | None = None
    folder: Path | None = None
    is_rehearsed: bool = False
    unsound: str | None = None
    new_run: str | None = None
    rents_at: str | None = None
    rent: RentCost | None = None
    is_job: bool = False
