"""A run as plain lines, for a pipe or a file. The other views build on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from launcher.cli.figures import clock_text, value_text
from launcher.cli.plan_text import headline
from launcher.cli.progress import Progress, count
from launcher.cli.say import say, without_escapes
from launcher.errors import HostError
from launcher.runs import evidence
from launcher.runs.curves import points
from launcher.runs.mirror import News
from launcher.runs.view import Result
from launcher.values.plan import Finding, Plan
from launcher.values.record import Event, Parent

LOG_TAIL = 15
TAIL_CHARS = 8192
_SUMMARY = ("train_", "total_", "epoch")  # a Trainer's closing metrics: recorded, not shown while watching


class Stage:
    """A step of a launch while it runs: the text shown when it is done, and how to show its progress."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.text: str | None = ""
        self.progress = show


class PlainView:
    """Plain lines, for a pipe or a file; the terminal's view builds on it."""

    def __init__(self) -> None:
        self.progress = Progress("", None)
        self.rehearsed = False
        self._state: list[Any] = []
        self._log = ""

    def write(self, text: str, style: str = "") -> None:
        """Write one line."""
        say(text)

    def head(self, plan: Plan) -> None:
        """Show what will run where."""
        self.write(headline(plan), "bold")

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Show a stage when it is done."""
        began = time.monotonic()
        with self.busy(name) as show:
            stage = Stage(show)
            yield stage
        self.write(f"  ✓ {name:<8} {time.monotonic() - began:5.1f} s   {stage.text}")

    @contextmanager
    def busy(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show that something goes on: in a pipe, its steps. Yield how to show one."""
        last = ""

        def show(step: str) -> None:
            nonlocal last
            if step != last:
                self.write(f"    {name}: {step}")
            last = step

        yield show

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        self.write(f"  · {text}", "dim")

    def finding(self, finding: Finding) -> None:
        """Show what the gate says."""
        self.write(f"  ! {finding.message}")

    def started(self, run: str) -> None:
        """Say the run's id last, alone, for who reads the last line."""
        self.write(run)

    def begin(self, run: str, steps: int | None, events: list[Event]) -> None:
        """Begin to show a run."""
        self.progress = Progress(run, steps)
        for event in events:
            self.progress.take(event)

    def continues(self, run: str, parent: Parent) -> None:
        """Say which run this one goes on with."""
        self.write(f"  · continues {parent.run} from step {parent.step}", "dim")

    def news(self, news: News) -> None:
        """Show what an answer brought."""
        self._log = (self._log + news.log)[-TAIL_CHARS:]
        self.rehearsed = bool(news.state.get("rehearsed"))
        silence = evidence.why_silent(news.state)
        state = [news.state.get("state"), news.state.get("attempt"), silence]
        is_told = bool(news.state.get("remedy"))  # by an event, in more words
        if (
            state != self._state
            and state[0] in ("resuming", "stopping", "waiting", "interrupted")
            and not is_told
        ):
            self.note(f"{state[0]} {silence or news.state.get('reason') or ''}".rstrip())
        self._state = state
        for event in news.events:
            self.event(event)

    def event(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "state" and event.values.get("state") == "running" and (event.attempt or 1) > 1:
            begun = count(event.values.get("from"))
            where = "" if begun is None else f" from step {begun}"
            self.write(f"  ✓ attempt {event.attempt} running{where}")
        if event.kind == "remedy":
            self.remedy(event)
        phase = self.progress.phase
        if self.progress.take(event):
            self.metric(event)
        elif self.progress.phase != phase and self.progress.phase:
            self.phase()

    def remedy(self, event: Event) -> None:
        """Show why an attempt ended, and what the next one does about it."""
        told = event.values
        where = "before its first step" if event.step is None else f"at step {event.step}"
        self.write(
            f"  ! attempt {told.get('attempt')} ended {where}: {told.get('class')}  ({told.get('why')})"
        )
        self.write(f"    remedy: {told.get('text')}")

    def phase(self) -> None:
        """Say that a phase without steps has begun."""
        self.write(f"  · {self.progress.phase}")

    def metric(self, event: Event) -> None:
        """Show a metric event as a line."""
        if "loss" in event.values:
            self.write(f"    step {self.progress.where():>9}  {'  '.join(self.progress.words())}")
            return
        words = [
            f"{one.name} {value_text(one.value)}"
            for one in points(event)
            if not one.name.startswith(_SUMMARY)
        ]
        if words:
            self.write(f"    step {self.progress.where():>9}  {'  '.join(words)}")

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Say that the link is lost."""
        why = str(error).splitlines()[0]
        self.write(
            f"  · no link to {error.host}: the run is not affected. Retrying ({tries}) in {wait_s:.0f} s … {why}"
        )

    def back(self) -> None:
        """Say that the link is back."""
        self.note("the link is back")

    def end(self, run: str, state: dict[str, Any], found: Result) -> None:
        """Show how the run ended and what it left."""
        short = run.rpartition("-")[2]
        name, reason = state.get("state"), state.get("reason")
        took = clock_text(found.seconds) if found.seconds is not None else ""
        how = ", rehearsed on a CPU" if state.get("rehearsed") else ""
        if name == "succeeded":
            self.write(f"  ✓ succeeded {took}   {', '.join(_outcome(self.progress, found))}{how}", "bold")
            self.write(f"  run      {run}")
            for label, path in (("adapter", found.adapter), ("curve", found.picture)):
                if path is not None:
                    self.write(f"  {label:<8} {path}")
            self.write(f"  metrics  launch metrics {short}      tensorboard --logdir runs")
            return
        where = f"step {self.progress.where()}{how}"
        self.write(f"  ✗ {name} {took}   {reason or 'nobody holds it'}, {where}", "bold")
        for label, text in evidence.diagnosis(state.get("evidence")).items():
            self.write(f"    {label:<6} {text}")
        if words := evidence.words(state.get("evidence")):
            self.write(f"    {', '.join(words)}")
        if name == "failed":
            for line in without_escapes(self._log).splitlines()[-LOG_TAIL:]:
                self.write(f"    | {line[:200]}", "dim")
            self.write(f"  next     launch logs {short}")
        elif name == "interrupted":
            self.write(f"  next     launch attach {short}     goes on from the last checkpoint")
        elif name == "waiting":
            self.write(f"  next     launch attach {short}     tries again")
        if name in ("failed", "cancelled") and count(state.get("checkpoint")) is not None:
            self.write(f"  go on    launch resume {short}     from step {state['checkpoint']}")

    def close(self) -> None:
        """Lines leave nothing to end."""


def _outcome(progress: Progress, found: Result) -> list[str]:
    words = [f"{progress.step} steps"] if progress.step is not None else []
    if "loss" in found.metrics and found.first_loss is not None:
        words.append(f"loss {value_text(found.first_loss)} → {value_text(found.metrics['loss'])}")
    words += [
        f"{name.replace('_', ' ')} {found.metrics[name]:.2f}"
        for name in ("accuracy", "answer_rate")
        if name in found.metrics
    ]
    return words
