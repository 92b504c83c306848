"""A verification in the terminal: a line for each trial while it runs, and tables of the results at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from launcher.cli.follow.plain_view import PlainView
from launcher.cli.follow.terminal_view import TerminalView
from launcher.cli.json_output.verification_shapes import VerificationShown
from launcher.cli.output import streams
from launcher.cli.output.columns import Column, print_columns
from launcher.cli.output.figures import value_text
from launcher.cli.output.say import say
from launcher.cli.output.wrapping import say_wrapped
from launcher.cli.text.log_text import readable
from launcher.transport.log_diagnosis import BY_NAME
from launcher.values.plan import Plan
from launcher.values.precision import Precision
from launcher.values.record import Event, PlanSummary
from launcher.values.reported.trial_record import (
    GOOD,
    CardMeasured,
    JobMeasured,
    TrialBegun,
    TrialEnded,
    rate_figure,
    rate_of,
    rate_words,
)
from launcher.verify.verification_report import RungReport, VerificationReport

if TYPE_CHECKING:
    from launcher.copy.printed_lines import Printed

_NO_FIGURE = "-"
_UNKNOWN = "unknown"


def make_view() -> PlainView:
    """Return a view of the trials, with a live bar if standard error is a terminal."""
    console = streams.console(stderr=True)
    return _TerminalTrials(console) if console.is_terminal else _PlainTrials()


class _PlainTrials(PlainView):
    """Prints a line for each trial. It hides the job's output."""

    _ladder: Sequence[Precision] = ()
    _steps: int | None = None
    _micro_batch: int | None = None
    _is_rehearsed = False

    def head(self, plan: Plan) -> None:
        """Show the job, host and card under test."""
        super().head(plan)
        self._ladder, self._is_rehearsed = plan.ladder, plan.rehearsed
        self._steps = plan.verification.steps if plan.verification is not None else None
        self._micro_batch = plan.split.micro_batch

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Begin the view. The number of steps is that of one trial, not that of the complete job."""
        super().begin(run, plan.model_copy(update={"steps": self._steps}), events)

    def _take_printed(self, printed: Printed) -> None:
        self.silence.last_line = printed.text.rpartition("\n")[2]

    def metric(self, event: Event) -> None:
        """Ignore the metric."""

    def event(self, event: Event) -> None:
        """Show a trial's start and end, and the progress of its steps. An attempt gets no line."""
        if event.kind == "trial":
            try:
                trial = TrialEnded.lenient(event.values)
            except ValidationError:
                return
            self.write(trial_line(trial, self._ladder, is_rehearsed=self._is_rehearsed))
        elif event.kind == "state":
            self.progress.take(event)
            if event.values.get("state") == "running":
                self._begin_trial(event)
        elif event.kind != "begin":  # a "begin" event has the steps of the complete job
            super().event(event)

    def _begin_trial(self, event: Event) -> None:
        """Record the current trial, and count its steps from 0."""
        try:
            trial = TrialBegun.lenient(event.values)
        except ValidationError:
            return
        progress = self.progress
        progress.purpose = trial_title(trial, self._ladder, self._micro_batch)
        progress.steps, progress.step, progress.values = trial.steps, None if trial.steps is None else 0, {}
        self.trial_begins(progress.purpose)

    def trial_begins(self, title: str) -> None:
        """Print the title of a trial that begins."""
        self.note(title)


class _TerminalTrials(_PlainTrials, TerminalView):
    """Prints the lines above a live bar."""

    def trial_begins(self, title: str) -> None:
        """Do nothing: the line above the bar shows the title."""


def trial_title(trial: TrialBegun, ladder: Sequence[Precision], micro_batch: int | None) -> str:
    """Return a trial's title: `card` or `rung 2 of 3, fp32`, with a micro-batch that differs from the plan's."""
    if trial.trial == "card":
        return "card"
    size = f"micro-batch {trial.micro_batch}"
    if trial.trial == "batch":
        return size
    words = [f"rung {trial.rung + 1} of {len(ladder)}"]
    words += [ladder[trial.rung].title] if 0 <= trial.rung < len(ladder) else []
    return ", ".join([*words, *([size] if trial.micro_batch != micro_batch else [])])


def trial_line(trial: TrialEnded, ladder: Sequence[Precision], *, is_rehearsed: bool) -> str:
    """Return a line with a trial's result. A rehearsal omits speed and memory: they would be the CPU's."""
    mark = "✓" if trial.result == GOOD else "!"
    if trial.trial == "card":
        found = CardMeasured.lenient(trial.measured) if trial.measured is not None else None
        return f"  {mark} card     {trial.result if found is None else _card_words(found)}"
    found_job = JobMeasured.lenient(trial.measured) if trial.measured is not None else None
    words = trial.result if found_job is None else _job_words(found_job, is_rehearsed=is_rehearsed)
    if trial.trial == "batch":
        return f"  {mark} batch    micro-batch {trial.micro_batch}: {words}"
    title = ladder[trial.rung].title if 0 <= trial.rung < len(ladder) else "unknown"
    return f"  {mark} rung {trial.rung + 1}   {title}: {words}"


def show_report(report: VerificationReport) -> None:
    """Print a verification's report."""
    plan = report.plan
    say_wrapped(f"{plan.job} on {plan.host} · {plan.card_title}")
    if report.card is not None:
        _show_card(report.card)
    if report.card_failure is not None:
        failure = report.card_failure
        say_wrapped(f"the card: {failure.result}: {failure.why or ''}".rstrip(": "), hang=2)
        if failure.line:
            say_wrapped(f"  {failure.line}", hang=2)
    if report.rungs:
        _show_rungs(report)
    if report.trains_nowhere:
        _show_printed(report.rungs[0])
    if report.batch is not None:
        batch = report.batch
        too_large = (
            f"; {batch.too_large} ran out of memory" if batch.too_large else ", the whole batch of a card"
        )
        say_wrapped(f"the largest micro-batch in rung {batch.rung}: {batch.fits}{too_large}")
    for line in conclusions(report):
        say_wrapped(line, hang=2)


def conclusions(report: VerificationReport) -> list[str]:
    """Return the conclusions from a report, and the limits of the report."""
    plan, fastest = report.plan, report.fastest
    first = next((rung for rung in report.rungs if rung.rung == 1), None)
    lines = []
    if report.works and fastest is not None:
        lines.append(f"rung {fastest.rung} is the fastest here: later launches begin with it")
    elif report.works:
        lines.append("rung 1 works, so a launch begins with it")
    elif first is not None and report.state.state == "succeeded":
        good = next((rung.rung for rung in report.rungs if rung.works), None)
        behind = f"; rung {good} works" if good is not None else ""
        lines.append(f"rung 1 does not work here{behind}")
        if not (first.is_put_behind or plan.rehearsed) and fastest is None:
            lines.append(
                "a launch still begins with rung 1: only failures that a precision caused are remembered"
            )
    elif report.trains_nowhere:
        lines.append("no rung works here")
        lines += filter(None, [_mend(report.rungs[0].result, report)])
        lines += [f"to see the complete output   {report.launch}"] if report.launch is not None else []
    if report.card_failure is not None:
        lines += filter(None, [_mend(report.card_failure.result, report)])
    elif len(report.rungs) < len(plan.ladder):
        state = report.state
        lines.append(f"not finished: {' '.join(filter(None, (state.state, state.reason)))}; verify it again")
    if plan.rehearsed:
        lines.append(
            "rehearsed on a CPU: it shows dtypes, scaler and gradients; not the card's kernels, speed or memory. "
            "Nothing is remembered"
        )
        return lines
    if report.rungs and any(rung.measured is not None for rung in report.rungs):
        lines.append(f"remembered on {plan.host}: later plans of this job there use it")
    if plan.profile.kind == "cpu":
        lines.append("the speed and dtypes are those of a CPU; for a card's plan   --rehearse --profile CARD")
    return lines


def _mend(result: str, report: VerificationReport) -> str | None:
    """Return the remedy for the failure that ended a verification, or None if it is unknown."""
    evidence = report.state.evidence or {}
    if evidence.get("class") == result and isinstance(evidence.get("mend"), str):
        return str(evidence["mend"])
    return BY_NAME[result].mend if result in BY_NAME and result != _UNKNOWN else None


def _show_printed(rung: RungReport) -> None:
    """Print the last lines that a failed rung printed."""
    if rung.printed:
        say(f"rung {rung.rung} printed last:")
        for line in readable("\n".join(rung.printed)).split("\n"):
            say(f"  {line}")


def _show_card(card: CardMeasured) -> None:
    if card.device == "cuda":
        kernels = f"code for {card.kernels}" if card.kernels else "no code for this card"
        say_wrapped(f"{card.name}, capability {card.capability}: torch {card.torch} has {kernels}")
    else:
        say_wrapped(f"{card.device}: torch {card.torch}")
    rows = [
        (
            name,
            _figure(one.forward_tflops),
            _figure(one.backward_tflops),
            one.error or ("" if one.finite is not False else "not finite"),
        )
        for name, one in card.products.items()
    ]
    columns = (
        Column("products"),
        Column("TFLOP/s", is_figure=True),
        Column("backward", is_figure=True),
        Column("", 20, wraps=True),
    )
    print_columns(columns, rows)


def _show_rungs(report: VerificationReport) -> None:
    """Print a row for each rung. A rehearsal omits speed and memory: they would be the CPU's."""
    reference = next((rate_of(rung.measured) for rung in report.rungs if rung.precision.mode == "fp32"), None)
    has_tokens = any(rung.measured and rung.measured.tokens_per_s for rung in report.rungs)
    figures = (
        Column("tokens/s" if has_tokens else "examples/s", is_figure=True),
        Column("of fp32", is_figure=True, drop=3),
        Column("GB", is_figure=True),
    )
    rows = [
        (*_title_cells(rung), *_speed_cells(rung, reference), _gradient_cell(rung), _notes(rung, report))
        for rung in report.rungs
    ]
    columns = [
        Column("rung"),
        Column("precision"),
        Column("base", drop=2),
        Column("result"),
        *figures,
        Column("gradient", is_figure=True),
        Column("seen", 30, wraps=True),
    ]
    shown = [
        place for place, column in enumerate(columns) if not report.plan.rehearsed or column not in figures
    ]
    print_columns([columns[place] for place in shown], [[row[place] for place in shown] for row in rows])


def _title_cells(rung: RungReport) -> tuple[str, ...]:
    name = rung.precision.products_title
    result = "trains" if rung.result == GOOD else rung.result
    return str(rung.rung), name, rung.precision.base_title, result


def _speed_cells(rung: RungReport, reference: float | None) -> tuple[str, ...]:
    rate, found = rate_of(rung.measured), rung.measured
    speed = rate_figure(rate) if rate else _NO_FIGURE
    share = f"{rate / reference:.2f} x" if rate and reference else _NO_FIGURE
    return speed, share, _figure(found.peak_gb if found else None)


def _gradient_cell(rung: RungReport) -> str:
    found = rung.measured
    return _NO_FIGURE if found is None or found.cosine is None else f"{found.cosine:.4f}"


def _notes(rung: RungReport, report: VerificationReport) -> str:
    """Return the text of a rung's last column: loss, scale and dtypes, or the reason for its failure."""
    found = rung.measured
    if found is None:  # the log is deleted with the run, so the row quotes the line of the failure
        return ": ".join(filter(None, (rung.why, rung.line)))
    words = [f"micro-batch {rung.micro_batch}"] if report.plan.hands_out("split") else []
    if rung.precision.scaler:
        skipped = f", {found.skipped} skipped" if found.skipped else ""
        words.append(f"scale {value_text(found.scale)}{skipped}" if found.scale else "no scaler seen")
    if found.loss_first is not None and found.loss_last is not None:
        words.append(f"loss {_loss(found.loss_first)} → {_loss(found.loss_last)}")
    if found.moved is False:
        words.append("the weights did not move")
    if found.cosine is None:
        words.append(_why_not_compared(rung, report))
    if rung.differs is not None:
        words.append("; ".join(rung.differs) if rung.differs else "dtypes as planned")
    return ", ".join(filter(None, words))


def _why_not_compared(rung: RungReport, report: VerificationReport) -> str:
    """Return the reason why a rung's gradient was not compared with fp32's; empty for the fp32 rung itself."""
    plain = next(
        (one for one in report.rungs if one.precision.mode == "fp32" and not one.precision.tf32), None
    )
    if rung is plain:
        return ""
    if plain is None or plain.measured is None:
        result = "was not tried" if plain is None else f"ended with {plain.result}"
        return f"fp32 {result}, so no gradient to compare with"
    return "no gradient could be compared with fp32's"


def _loss(value: float | str) -> str:
    return value if isinstance(value, str) else value_text(value)


def _figure(value: float | None) -> str:
    return _NO_FIGURE if value is None else f"{value:.3g}"


def _card_words(card: CardMeasured) -> str:
    speeds = [
        f"{name} {_figure(one.forward_tflops)}" for name, one in card.products.items() if one.forward_tflops
    ]
    return f"{card.name or card.device or 'unknown'}: {', '.join(speeds)} TFLOP/s"


def _job_words(found: JobMeasured, *, is_rehearsed: bool) -> str:
    words = [
        rate_words(found) if not is_rehearsed else "",
        f"{found.peak_gb:.3g} GB" if found.peak_gb and not is_rehearsed else "",
        f"gradient {found.cosine:.4f}" if found.cosine is not None else "",
    ]
    return ", ".join(filter(None, words)) or "it trains"


def report_json(report: VerificationReport, problem: str | None) -> VerificationShown:
    """Return a report as JSON."""
    plan = report.plan
    return VerificationShown(
        run=report.run,
        host=plan.host,
        job=plan.job,
        profile=plan.profile.name,
        rehearsed=plan.rehearsed,
        state=str(report.state.state),
        reason=report.state.reason,
        works=report.works,
        fastest=report.fastest.rung if report.fastest is not None else None,
        card=report.card,
        card_failure=report.card_failure,
        rungs=report.rungs,
        largest_micro_batch=report.batch,
        conclusions=conclusions(report),
        problem=problem,
    )
