"""The view of a run as plain lines, for a pipe or a file. The other views build on it.

Standard output gets only the training's output. Stages, notes and progress go to standard error.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.meter import Moved
from launcher.cli.follow.ending import ending, home_lines
from launcher.cli.follow.idle_notice import QUIET_S, IdleNotice
from launcher.cli.follow.link_loss import LinkLoss
from launcher.cli.follow.progress import Progress, count
from launcher.cli.output.asking import agrees
from launcher.cli.output.figures import clock_text, transfer_text, value_text
from launcher.cli.output.say import say
from launcher.cli.text.log_text import readable
from launcher.copy.printed_lines import Printed
from launcher.copy.record_sync import News
from launcher.errors import HostError
from launcher.metrics.curves import points
from launcher.runs.follow import evidence
from launcher.runs.follow.view import Result, View
from launcher.values.record import Event, Parent, PlanSummary, RunState, State, Summary, is_terminal
from launcher.values.states import Reason

if TYPE_CHECKING:
    from launcher.values.plan import Finding, Plan
    from launcher.values.upload_selection import UploadSelection

LOG_TAIL = 15
MAX_SURPRISES = 5
_SAVES = (State.STOPPING, Reason.SESSION_LIMIT)
"""State and reason of a run whose session is about to end."""
_SUMMARY = ("train_", "total_", "epoch")  # a Trainer's closing metrics are recorded, but not shown here


class PlainStage:
    """A stage of a launch. `text` is shown when it is done, and `progress` shows one of its steps.

    A transfer is shown every `transfer_every_s` seconds: a line for each megabyte would bury the other output.
    """

    def __init__(
        self, show: Callable[[str], None], show_transfer: Callable[[Moved], None], transfer_every_s: float
    ) -> None:
        self.text: str | None = ""
        self.progress = show
        self._show_transfer, self._every_s = show_transfer, transfer_every_s
        self._shown_at = time.monotonic()

    def moved(self, moved: Moved) -> None:
        """Show the progress of a transfer, unless the last one was shown less than `transfer_every_s` seconds ago."""
        now = time.monotonic()
        if now - self._shown_at >= self._every_s:
            self._shown_at = now
            self._show_transfer(moved)


class PlainView(View):
    """Prints plain lines, for a pipe or a file. A quiet view shows only stages, notes and the end."""

    transfer_every_s = 3.0

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.progress = Progress("", None)
        self.plan = PlanSummary()
        self.link_loss: LinkLoss | None = None
        self.rehearsed = False
        self.is_quiet = is_quiet
        self.silence = IdleNotice()
        self._state: list[Any] = []
        self._is_in_doubt = False
        self._said_of_session: str | None = None
        self._trouble: str | None = None
        self._warnings: list[str] = []  # the guard's, shown at the end; the training has printed them too
        self._not_shown: deque[str] = deque(maxlen=LOG_TAIL)

    def write(self, text: str, style: str = "") -> None:
        """Write one line."""
        say(text, file=sys.stderr)

    def write_wrapped(self, text: str, style: str = "") -> None:
        """Write a text as one line: a pipe has no width."""
        self.write(text, style)

    def head(self, plan: Plan) -> None:
        """Show the headline of a plan."""
        from launcher.cli.text.plan_text import headline  # only a launch shows its plan

        self.write_wrapped(headline(plan), "bold")

    def selection(self, selection: UploadSelection) -> None:
        """Name excluded files that a user may expect on the host."""
        from launcher.upload.excluded_text import surprises  # only a launch sends files

        named = list(surprises(selection))
        for words in named[:MAX_SURPRISES]:
            self.note(f"not sent: {words}")
        if len(named) > MAX_SURPRISES:
            self.note(f"not sent: {len(named) - MAX_SURPRISES} more like these")

    def agrees(self, question: str) -> bool | None:
        """Ask the user and return the answer; None if standard input or standard error is not a terminal."""
        return agrees(question)

    @contextmanager
    def stage(self, name: str) -> Iterator[PlainStage]:
        """Show a stage when it is done."""
        began = time.monotonic()
        with self.busy(name) as show:
            stage = PlainStage(show, lambda moved: show(transfer_text(moved)), self.transfer_every_s)
            yield stage
        if stage.text is not None:
            self.write(f"  ✓ {name:<8} {time.monotonic() - began:5.1f} s   {stage.text}")

    @contextmanager
    def busy(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show work in progress. Yield a function that shows a step of it, with the elapsed time after 10 s."""
        last = ""
        began_s = time.monotonic()

        def show(step: str) -> None:
            nonlocal last
            if step != last:
                elapsed_s = time.monotonic() - began_s
                clock = f"   {clock_text(elapsed_s)}" if elapsed_s >= QUIET_S else ""
                self.write(f"    {name}: {step}{clock}")
            last = step

        yield show

    def note(self, text: str) -> None:
        """Show a note."""
        self.write_wrapped(f"  · {text}", "dim")

    def finding(self, finding: Finding) -> None:
        """Show a finding of the checks before a launch."""
        self.write_wrapped(f"  ! {finding.message}")

    def started(self, run: str, job_id: str | None, *, is_asked: bool) -> None:
        """With `is_asked` (`--detach`), print the run's id on standard output, for scripts."""
        if is_asked:
            say(run)

    def ahead(self, summary: Summary, plan: PlanSummary) -> None:
        """Store the run's plan and attempt, before its history is read."""
        self.plan = plan
        self.progress = Progress(summary.run, plan.steps or summary.steps)
        self.progress.attempt = summary.attempt

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Start to show a run. `events` were fetched before."""
        known = self.progress if self.progress.is_held and self.progress.run == run else Progress(run, None)
        self.progress = Progress(run, plan.steps or known.steps)
        if known.is_held:
            self.progress.hold(known.step, known.values)
        self.plan = plan
        for event in events:
            self.progress.take(event)
            self._warnings += filter(None, [evidence.warned(event)])
        observed = [event for event in events if evidence.observed(event)]
        for event in observed[-1:]:
            self.observed(event)
        self.silence.begin(events[0].time if events else None)

    def continues(self, run: str, parent: Parent) -> None:
        """Show the parent run and its step, or the file that the script loads itself."""
        where = (
            f"with its own {parent.checkpoint}" if parent.is_trainers is False else f"from step {parent.step}"
        )
        self.write(f"  · continues {parent.run} {where}", "dim")

    def news(self, news: News) -> None:
        """Show the events and the printed lines of an answer."""
        self.rehearsed = news.state.rehearsed
        # That a scheduler does not answer is shown below.
        silence = None if evidence.is_in_doubt(news.state.evidence) else evidence.why_silent(news.state)
        state = [news.state.state, news.state.attempt, silence]
        has_remedy = bool(news.state.remedy)  # an event describes it in full
        if (
            state != self._state
            and state[0] in ("resuming", "stopping", "waiting", "interrupted")
            and news.state.reason not in (Reason.NEXT_TRIAL, Reason.SESSION_LIMIT)
            and not has_remedy
        ):
            self.note(f"{state[0]} {silence or news.state.reason or ''}".rstrip())
        elif state != self._state and (state[0], news.state.reason) == _SAVES:
            self.note("its session ends: it is asked to save")
        self._state = state
        self._show_session(news.state)
        self._show_trouble(news.state)
        items: list[Event | Printed] = [*news.events, *news.log]
        if news.log:  # events alone are already in order
            items.sort(key=lambda item: item.attempt or 0)
        for item in items:
            if isinstance(item, Event):
                self.event(item)
            else:
                self._take_printed(item)
        if not news.is_full:
            self.progress.release()
        self.hear(news)

    def _show_session(self, state: RunState) -> None:
        """Show a service's message about the session of an unfinished run, when it changes."""
        said = (
            None
            if state.state == State.INTERRUPTED or is_terminal(state.state)
            else evidence.of_service(state.evidence)
        )
        is_in_doubt = evidence.is_in_doubt(state.evidence)  # the words then count the seconds
        if said is not None and said != self._said_of_session and not (is_in_doubt and self._is_in_doubt):
            words = evidence.with_stop(said, self.progress.run.rpartition("-")[2])
            self.note(f"last seen {state.state}; {words}" if is_in_doubt else words)
        self._said_of_session, self._is_in_doubt = said, is_in_doubt

    def hear(self, news: News) -> None:
        """Check an answer for news, and show a notice after a long time without any."""
        self.silence.hear(news)
        if not self.is_quiet and self.silence.is_due():
            self.note(self.silence.text())

    def _take_printed(self, printed: Printed) -> None:
        text = readable(printed.text)
        self.silence.last_line = text.rpartition("\n")[2]
        if self.is_quiet:
            self._not_shown.extend(text.rsplit("\n", LOG_TAIL)[-LOG_TAIL:])
        else:
            self.printed(printed, text)

    def printed(self, printed: Printed, text: str) -> None:
        """Show complete lines that the training printed, or a piece of a long one."""
        sys.stdout.write(text if printed.continues else f"{text}\n")
        sys.stdout.flush()

    def _show_trouble(self, state: RunState) -> None:
        """Show a trouble that blocks the run when it begins, and its end while the attempt still runs."""
        trouble = state.trouble
        what = trouble.what if trouble else None
        if trouble is not None and what != self._trouble:
            self.note(trouble.words)
        elif self._trouble and what is None and state.state == State.RUNNING:
            self.note(f"no longer: {self._trouble}")
        self._trouble = what

    def event(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "metric":  # most events are metrics
            self._take_metric(event)
            return
        if event.kind == "state" and event.values.get("state") == "running" and (event.attempt or 1) > 1:
            first_step = count(event.values.get("from"))
            where = "" if first_step is None else f" from step {first_step}"
            self.write(f"  ✓ attempt {event.attempt} running{where}")
        if event.kind == "remedy":
            self.remedy(event)
        self.observed(event)
        if warning := evidence.warned(event):
            self._warnings.append(warning)
        for name, path in evidence.moved_aside(event).items():
            self.note(
                f"{name} is incomplete and was not saved by the worker: moved to checkpoints/{path} on the host"
            )
        for name, wrong in evidence.damaged(event).items():
            self.note(f"{name} is damaged ({wrong}): the newest whole checkpoint before it is taken")
        if files := evidence.made_anew(event):
            self.note(
                f"the host stopped before its disk had all of the code: {files} of its files were made again"
            )
        phase = self.progress.phase
        self.progress.take(event)
        if self.progress.phase != phase and self.progress.phase and not self.is_quiet:
            self.phase()

    def _take_metric(self, event: Event) -> None:
        """Record a metric, and show it unless the training prints it itself."""
        if self.progress.take(event) and event.source is None and not self.is_quiet:
            self.metric(event)

    def remedy(self, event: Event) -> None:
        """Show why an attempt ended, and the change for the next attempt."""
        values = event.values
        where = "before its first step" if event.step is None else f"at step {event.step}"
        self.write(
            f"  ! attempt {values.get('attempt')} ended {where}: {values.get('class')}  ({values.get('why')})"
        )
        self.write(f"    remedy: {values.get('text')}")

    def observed(self, event: Event) -> None:
        """Show the training loop that the start-up hook observes, when the training begins."""
        if what := evidence.observed(event):
            self.note(f"steps and metrics come from the {what}, by the start-up hook")

    def phase(self) -> None:
        """Show that a phase without steps has begun."""
        self.write(f"  · {self.progress.phase}")

    def metric(self, event: Event) -> None:
        """Show a metric event as a line."""
        if "loss" in event.values:
            self.write(f"    {self._place(event)}  {'  '.join(self.progress.words())}")
            return
        words = [
            f"{point.name} {value_text(point.value)}"
            for point in points(event)
            if not point.name.startswith(_SUMMARY)
        ]
        if words:
            self.write(f"    {self._place(event)}  {'  '.join(words)}")

    def _place(self, event: Event) -> str:
        """Return the step of a metric, or its time if the log gave no step."""
        if event.step is None:
            return f"at {time.strftime('%H:%M:%S', time.localtime(event.time)):>11}"
        return f"step {self.progress.place(event.step):>9}"

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Show the loss of the link. Repeat the note while it lasts."""
        self.link_loss = self.link_loss or LinkLoss()
        self.link_loss.tried(error, tries, wait_s)
        if self.link_loss.is_due():
            self.note(self.link_loss.text())

    def back(self) -> None:
        """Show that the link is back."""
        lost_s = self.link_loss.seconds if self.link_loss else 0.0
        self.link_loss = None
        self.note(f"the link is back after {clock_text(lost_s)}")

    def came_home(self, run: str, files: Mapping[Path, int]) -> None:
        """Show the largest of the downloaded files."""
        for line in home_lines(run, files):
            self.write(line)

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Show the guard's warnings and the run's end."""
        for warning in self._warnings[-3:]:
            self.write_wrapped(f"  ! the guard warned: {warning}")
        for line in ending(run, state, result, self.progress, list(self._not_shown)):
            self.write(*line)
