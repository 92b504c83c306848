"""How a run looks: in a terminal, in a pipe, as JSON."""

from __future__ import annotations

import codecs
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.say import say, without_escapes
from launcher.cli.signals import cursor_back_on_stop, spinner
from launcher.errors import HostError
from launcher.hosts.agent import printable
from launcher.runs import evidence
from launcher.runs.curves import as_json, points, record
from launcher.runs.mirror import Mirror, News
from launcher.runs.view import Result, View
from launcher.values.plan import Finding, Plan
from launcher.values.record import Event, Parent

ACCENT = "cyan"
LOG_TAIL = 15
TAIL_CHARS = 8192
_SHOWN = {"loss": "loss", "grad_norm": "grad", "learning_rate": "lr", "tokens_per_s": "tok/s"}
_SUMMARY = ("train_", "total_", "epoch")  # a Trainer's closing line, kept on record, of no use while watching


def make_view(as_json_lines: bool) -> View:
    """Return the view that fits standard output: JSON lines if asked, a live one in a terminal, else plain lines."""
    if as_json_lines:
        return JsonView()
    console = Console(highlight=False)
    return TerminalView(console) if console.is_terminal else PlainView()


def show_plan(plan: Plan, findings: tuple[Finding, ...]) -> None:
    """Print a plan for people."""
    say(
        headline(plan),
        *(
            f"  rung {number}     {rung.title}   ({rung.why})"
            for number, rung in enumerate(plan.ladder, start=1)
        ),
        f"  batch      {plan.split.title}",
        f"  command    {' '.join(plan.command)}",
        f"  env        {_environment(plan)}",
        f"  plan       sha256 {plan.digest[:16]}   ({len(findings)} findings; the whole of it: --json)",
    )


def _environment(plan: Plan) -> str:
    if plan.environment is None:
        return plan.host_environment or "the python that is found there"
    one = plan.environment
    return f"{one.name}, made there once   (Python {one.python}, torch {one.torch})"


def headline(plan: Plan) -> str:
    """Return what runs where and how, in one line."""
    card = f"{plan.profile.title}, rehearsed on a CPU" if plan.rehearsed else plan.profile.title
    return f"{plan.job} on {plan.host} · {card} · {plan.ladder[0].title}"


class _Stage:
    def __init__(self, show: Callable[[str], None]) -> None:
        self.text: str | None = ""
        self.progress = show


class Progress:
    """Where a run stands, gathered from its events."""

    def __init__(self, run: str, steps: int | None) -> None:
        self.run = run
        self.steps = steps
        self.step: int | None = None
        self.values: dict[str, float] = {}
        self.phase: str | None = None
        self.phase_share = 0.0
        self._first: tuple[float, int] | None = None
        self._last_time = 0.0

    def take(self, event: Event) -> bool:
        """Take an event; return whether it was a metric of the training itself."""
        if event.kind == "begin" and (steps := _count(event.values.get("steps"))):
            self.steps = steps
            self._first = None
        if event.kind == "progress":
            done, total = _count(event.values.get("done")), _count(event.values.get("total"))
            if done is not None and total:
                self.phase = None if done >= total else str(event.values.get("stage"))
                self.phase_share = min(1.0, done / total)
        if event.kind == "state" and event.values.get("state") == "running":
            self._first, self.phase = None, None
        found = [point for point in points(event) if point.rank == 0]
        if not found:
            return False
        self.step = event.step
        self.values.update({point.name: point.value for point in found})
        if "loss" in event.values and event.step is not None:
            self.phase = None
            self._first = self._first or (event.time, event.step)
            self._last_time = event.time
        return True

    def eta_s(self) -> float | None:
        """Return the seconds to the last step at the pace so far, None where it cannot be told."""
        if self._first is None or self.step is None or not self.steps or self.step <= self._first[1]:
            return None
        pace = (self._last_time - self._first[0]) / (self.step - self._first[1])
        return max(0.0, pace * (self.steps - self.step))

    def words(self) -> list[str]:
        """Return the values that matter while training, each in a word or two."""
        found = [
            f"{label} {number(self.values[name])}" for name, label in _SHOWN.items() if name in self.values
        ]
        eta = self.eta_s()
        return [*found, f"eta {clock(eta)}"] if eta is not None else found

    def where(self) -> str:
        """Return the step, of how many where that is known."""
        return "-" if self.step is None else f"{self.step}/{self.steps}" if self.steps else str(self.step)


def _count(value: object) -> int | None:
    """Return what a script reported as a number of things, None where it can be none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53 else None


def number(value: float) -> str:
    """Return a metric for a person: four digits, thousands with commas; a non-finite one by its name."""
    if not math.isfinite(value):
        return str(as_json(value))
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def clock(seconds: float) -> str:
    """Return seconds as 9:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
    def stage(self, name: str) -> Iterator[_Stage]:
        """Show a stage when it is done."""
        began = time.monotonic()
        with self.busy(name) as show:
            stage = _Stage(show)
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
            begun = _count(event.values.get("from"))
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
            f"{one.name} {number(one.value)}" for one in points(event) if not one.name.startswith(_SUMMARY)
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
        took = clock(found.seconds) if found.seconds is not None else ""
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
        if name in ("failed", "cancelled") and _count(state.get("checkpoint")) is not None:
            self.write(f"  go on    launch resume {short}     from step {state['checkpoint']}")

    def close(self) -> None:
        """Lines leave nothing to end."""


def _outcome(progress: Progress, found: Result) -> list[str]:
    words = [f"{progress.step} steps"] if progress.step is not None else []
    if "loss" in found.metrics and found.first_loss is not None:
        words.append(f"loss {number(found.first_loss)} → {number(found.metrics['loss'])}")
    words += [
        f"{name.replace('_', ' ')} {found.metrics[name]:.2f}"
        for name in ("accuracy", "answer_rate")
        if name in found.metrics
    ]
    return words


class TerminalView(PlainView):
    """Lines that stay, and below them a live bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._drawn = ExitStack()

    def write(self, text: str, style: str = "") -> None:
        """Write one line, above the bar where there is one."""
        line = Text(printable(text), style=style)
        if text.startswith("  ✓"):
            line.stylize(ACCENT, 2, 3)
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def busy(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner, in the place of the bar."""
        self.close()
        with spinner(self._console, name, ACCENT) as status:
            yield lambda step: status.update(
                Text(printable(f"{name}: {step}"), no_wrap=True, overflow="ellipsis")
            )

    def begin(self, run: str, steps: int | None, events: list[Event]) -> None:
        """Begin the live bar."""
        super().begin(run, steps, events)
        bar = Live(get_renderable=self._bar, console=self._console, refresh_per_second=8, transient=True)
        self._drawn.enter_context(cursor_back_on_stop(self._console))
        self._drawn.enter_context(bar)

    def phase(self) -> None:
        """The bar says it."""

    def metric(self, event: Event) -> None:
        """Show evaluations as lines; the bar shows the rest."""
        if "loss" not in event.values:
            super().metric(event)

    def end(self, run: str, state: dict[str, Any], found: Result) -> None:
        """End the bar and show the end."""
        self.close()
        super().end(run, state, found)

    def close(self) -> None:
        """End the bar, which gives the cursor back."""
        self._drawn.close()

    def _bar(self) -> Group:
        progress = self.progress
        share = (
            progress.phase_share if progress.phase else (progress.step or 0) / (progress.steps or math.inf)
        )
        row = Table.grid(padding=(0, 2))
        words = [progress.phase] if progress.phase else [progress.where(), *progress.words()]
        name = progress.run.split("-", 1)[-1].rpartition("-")[0]
        bar = ProgressBar(total=1.0, completed=share, width=26, complete_style=ACCENT, finished_style=ACCENT)
        row.add_row(
            Text(f"  {name}"), bar, Text(printable("  ".join(words)), no_wrap=True, overflow="ellipsis")
        )
        return Group(row)


class JsonView(PlainView):
    """One JSON object a line."""

    def _put(self, **values: Any) -> None:
        more = {"rehearsed": True} if self.rehearsed else {}
        print(json.dumps({"version": 1, **values, **more}), flush=True)

    def write(self, text: str, style: str = "") -> None:
        """Lines for people are not for scripts."""

    def head(self, plan: Plan) -> None:
        """Put the plan."""
        self.rehearsed = plan.rehearsed
        self._put(kind="plan", plan=plan.model_dump(mode="json"), digest=plan.digest)

    @contextmanager
    def stage(self, name: str) -> Iterator[_Stage]:
        """Put a stage when it is done."""
        stage = _Stage(lambda step: self._put(kind="progress", name=name, text=step))
        began = time.monotonic()
        yield stage
        self._put(kind="stage", name=name, seconds=round(time.monotonic() - began, 3), text=stage.text)

    def note(self, text: str) -> None:
        """Put a note."""
        self._put(kind="note", text=text)

    def finding(self, finding: Finding) -> None:
        """Put a finding."""
        self._put(kind="finding", **finding.model_dump())

    def started(self, run: str) -> None:
        """Put the id of the run that was left."""
        self._put(kind="started", run=run)

    def continues(self, run: str, parent: Parent) -> None:
        """Put which run this one goes on with."""
        self._put(kind="parent", run=run, parent=parent.model_dump())

    def news(self, news: News) -> None:
        """Put what an answer brought, all of it at once."""
        super().news(news)
        sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Put metrics as metric lines, anything else as it is."""
        if event.kind == "metric":
            for point in points(event):
                told = record(self.progress.run, point, rehearsed=self.rehearsed)
                line = to_json(told, ensure_ascii=True)  # a tenth of json.dumps
                sys.stdout.write(f"{line.decode()}\n")
        else:
            self._put(**{**vars(event), "version": 1, "run": self.progress.run})

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Put the loss of the link."""
        self._put(
            kind="link", state="lost", host=error.host, tries=tries, wait_s=round(wait_s, 1), why=str(error)
        )

    def back(self) -> None:
        """Put the link's return."""
        self._put(kind="link", state="back")

    def end(self, run: str, state: dict[str, Any], found: Result) -> None:
        """Put the end."""
        metrics = {name: as_json(value) for name, value in found.metrics.items()}
        paths = {"adapter": found.adapter, "picture": found.picture}
        self._put(
            kind="end",
            run=run,
            state=state.get("state"),
            reason=state.get("reason"),
            evidence=state.get("evidence"),
            metrics=metrics,
            **{name: str(path) if path else None for name, path in paths.items()},
        )


class LogView(PlainView):
    """Only the log: what the mirror holds beyond what was shown, so that nothing is shown twice or left out."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self._mirror = mirror
        self._shown: dict[Path, int] = {}

    def write(self, text: str, style: str = "") -> None:
        """What is no log goes to standard error."""
        say(text, file=sys.stderr)

    def continues(self, run: str, parent: Parent) -> None:
        """It stands in no log."""

    def news(self, news: News) -> None:
        """Show the log's next piece, which lies in the mirror by now."""
        self.show()

    def show(self) -> None:
        """Show what is new, of all attempts; a character that is not whole yet waits for its rest."""
        for path in self._mirror.logs():
            shown = self._shown.get(path, 0)
            with path.open("rb") as file:
                file.seek(shown)
                text, size = codecs.utf_8_decode(file.read(), "replace")
            self._shown[path] = shown + size
            sys.stdout.write(without_escapes(text))
        sys.stdout.flush()
