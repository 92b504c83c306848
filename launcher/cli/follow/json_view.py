"""A run as JSON lines, for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from launcher.base.meter import Moved
from launcher.cli.follow.plain_view import PlainStage, PlainView
from launcher.cli.json_output.line_shapes import (
    EndLine,
    EventLine,
    FindingLine,
    HomeLine,
    LaunchLine,
    LinkLine,
    NoteLine,
    ParentLine,
    PlanLine,
    ProgressLine,
    StageLine,
    StartedLine,
    UploadLine,
)
from launcher.cli.output.answer import answer
from launcher.cli.output.figures import transfer_text
from launcher.cli.text.log_records import log_records
from launcher.copy.printed_lines import Printed
from launcher.copy.record_sync import News
from launcher.errors import HostError
from launcher.metrics.curves import points, record
from launcher.runs.follow.view import Result
from launcher.values.plan import Finding, Plan
from launcher.values.record import Event, Parent, RunState
from launcher.values.upload_selection import UploadSelection


class JsonView(PlainView):
    """Prints one JSON object per line."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        super().__init__(is_quiet=is_quiet)
        self._metric_lines: list[str] = []
        """The metric lines of an answer, written together: one write per line takes as long as making the lines."""

    def _put(self, shape: type[LaunchLine], **values: Any) -> None:
        self._write_metrics()
        answer(shape(**values, rehearsed=self.rehearsed))

    def _write_metrics(self) -> None:
        sys.stdout.write("".join(self._metric_lines))
        self._metric_lines.clear()

    def hear(self, news: News) -> None:
        """Do nothing: a script needs no notice about a run without news."""

    def printed(self, printed: Printed, text: str) -> None:
        """Print a record for each line that the training printed."""
        self._write_metrics()
        sys.stdout.write(log_records(self.progress.run, printed, text, rehearsed=self.rehearsed))

    def write(self, text: str, style: str = "") -> None:
        """Do nothing: plain lines are not part of the JSON output."""

    def head(self, plan: Plan) -> None:
        """Print the plan."""
        self.rehearsed = plan.rehearsed
        self._put(PlanLine, plan=plan, digest=plan.digest)

    def selection(self, selection: UploadSelection) -> None:
        """Print the upload selection."""
        self._put(UploadLine, **selection.shown())

    def agrees(self, question: str) -> bool | None:
        """Return None: a script is never asked."""
        return None

    @contextmanager
    def stage(self, name: str) -> Iterator[PlainStage]:
        """Print a stage when it is done, and its progress before."""

        def put(text: str, **values: Any) -> None:
            self._put(ProgressLine, name=name, text=text, **values)

        def put_transfer(moved: Moved) -> None:
            figures = {"done": moved.done, "total": moved.total, "bytes_per_s": round(moved.bytes_per_s)}
            put(transfer_text(moved), file=moved.name, eta_s=moved.eta_s, **figures)

        stage = PlainStage(put, put_transfer, self.transfer_every_s)
        began = time.monotonic()
        yield stage
        self._put(StageLine, name=name, seconds=round(time.monotonic() - began, 3), text=stage.text)

    def note(self, text: str) -> None:
        """Print a note."""
        self._put(NoteLine, text=text)

    def finding(self, finding: Finding) -> None:
        """Print a finding."""
        self._put(FindingLine, **dict(finding))

    def started(self, run: str, job_id: str | None, *, is_asked: bool) -> None:
        """Print the id of the run from which the client detaches."""
        self._put(StartedLine, run=run, job_id=job_id)

    def continues(self, run: str, parent: Parent) -> None:
        """Print the parent run and its step."""
        self._put(ParentLine, run=run, parent=parent)

    def news(self, news: News) -> None:
        """Print the events of an answer, with one flush."""
        super().news(news)
        self._write_metrics()
        sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Print metrics as metric lines, other events unchanged."""
        if event.kind == "metric":
            run, rehearsed = self.progress.run, self.rehearsed
            for point in points(event):
                line = to_json(
                    record(run, point, rehearsed=rehearsed), ensure_ascii=True
                )  # ten times as fast as json.dumps
                self._metric_lines.append(f"{line.decode()}\n")
        else:
            self._put(EventLine, **{**vars(event), "version": 1}, run=self.progress.run)

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Print the loss of the link."""
        found = {"host": error.host, "tries": tries, "wait_s": round(wait_s, 1), "why": str(error)}
        self._put(LinkLine, state="lost", **found)

    def back(self) -> None:
        """Print the link's return."""
        self._put(LinkLine, state="back")

    def came_home(self, run: str, files: Mapping[Path, int]) -> None:
        """Print the downloaded files of a run."""
        self._put(HomeLine, run=run, files={str(path): size for path, size in files.items()})

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Print the run's end."""
        paths = {"adapter": result.adapter, "picture": result.picture}
        self._put(
            EndLine,
            run=run,
            state=state.state,
            reason=state.reason,
            evidence=state.evidence,
            metrics=result.metrics,
            home={str(path): size for path, size in result.home.items()},
            rent_cents=result.rent.cents if result.rent is not None else None,
            **{name: str(path) if path else None for name, path in paths.items()},
        )
