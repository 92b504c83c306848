"""What a run shows to the user who started or follows it. The terminal, a pipe and --json each have their own view."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from launcher.base.meter import Moved
    from launcher.copy.record_sync import News
    from launcher.errors import HostError
    from launcher.rental.records import RentCost
    from launcher.values.plan import Finding, Plan
    from launcher.values.record import Event, Parent, PlanSummary, RunState, Summary
    from launcher.values.upload_selection import Cargo


class Stage(Protocol):
    """A step of a launch while it runs; `text` is what it found, shown when it is done, or None if it leaves no line."""

    text: str | None

    def progress(self, step: str, /) -> None:
        """Show how far it has come."""

    def moved(self, moved: Moved, /) -> None:
        """Show how far a transfer of bytes has come. This may be called ten times a second."""


class SilentStage:
    """A stage that nobody sees."""

    text: str | None = None

    def progress(self, step: str, /) -> None:
        """Show nothing."""

    def moved(self, moved: Moved, /) -> None:
        """Show nothing."""


class View(Protocol):
    """What shows a launch and a run to the user."""

    def head(self, plan: Plan) -> None:
        """Show what will run where, and at which precision."""

    def cargo(self, cargo: Cargo) -> None:
        """Show what of the folder does not travel although a user may count on it."""

    def agrees(self, question: str) -> bool | None:
        """Ask the user; return the answer, None without a terminal to ask at."""

    def stage(self, name: str) -> AbstractContextManager[Stage]:
        """Show a stage while it lasts, then its time and text."""

    def note(self, text: str) -> None:
        """Say something worth knowing outside of a stage."""

    def finding(self, finding: Finding) -> None:
        """Show what the gate says."""

    def started(self, run: str, job_id: str | None, *, is_asked: bool) -> None:
        """Say the id of a run that is left to itself, and that of its job in Slurm, if it is one.

        It `is_asked` for by --detach, or was interrupted as it began.
        """

    def ahead(self, summary: Summary, plan: PlanSummary) -> None:
        """Show where a run is now; its history, which may be long, is read next."""

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Begin to show a run; `events` are those that were fetched before."""

    def continues(self, run: str, parent: Parent) -> None:
        """Say which run this one goes on with, and from which step."""

    def news(self, news: News) -> None:
        """Show what an answer brought."""

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Say that the link is lost, which does not fail the run."""

    def back(self) -> None:
        """Say that the link is back."""

    def came_home(self, run: str, files: Mapping[Path, int]) -> None:
        """Show which files of a run are here, with their sizes in bytes."""

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Show how the run ended and what it left."""

    def close(self) -> None:
        """Leave the terminal as it was. The follower always calls it."""


class Result(NamedTuple):
    """What a run left on the client, and how long it took on the host's clock (None where that is not on record).

    The time in which its job waits in a scheduler's queue does not count.
    `home` are the files that came home, with their sizes in bytes. `adapted` is the command that would have mended a
    failure of precision. `folder` is the run's own on the client. `is_rehearsed`: a card's plan was tried on a CPU, and the
    script took something of it or ran as if the card were there. `unsound`: why the precision that ran is not sound on the card.
    `goes_on` is the run that goes on with this one elsewhere. `rents_at` is the account whose machine it had, and has no more.
    `rent` is what its rented machines have cost. `is_job`: it is a job of a Slurm cluster.
    """

    adapter: Path | None
    home: dict[Path, int]
    picture: Path | None
    metrics: dict[str, float]
    first_loss: float | None
    seconds: float | None
    adapted: str | None = None
    folder: Path | None = None
    is_rehearsed: bool = False
    unsound: str | None = None
    goes_on: str | None = None
    rents_at: str | None = None
    rent: RentCost | None = None
    is_job: bool = False
