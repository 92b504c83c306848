"""A run's precision beside the one that suits its card, as text and as JSON."""

from __future__ import annotations

from launcher.cli.json_output.precision_shapes import PrecisionShown
from launcher.cli.output.say import say
from launcher.cli.output.wrapping import say_wrapped
from launcher.runs.follow.precision_report import AttemptPrecision, PrecisionReport


def show_report(report: PrecisionReport) -> None:
    """Print both precisions as columns, the verdict, the next command, and the attempts."""
    plan, ran = report.plan, report.ran
    words = [report.run, plan.card_title, *([] if ran is None else [f"attempt {ran.attempt}"])]
    say_wrapped(" · ".join(words))
    if report.rows:
        source = "ran" if ran is None or ran.seen else "from the plan"
        _show_columns(("", source, "the card wants"), _marked(report))
    say_wrapped(f"  {report.sentence}", hang=2)
    if ran is not None and not ran.seen:
        why = "no optimizer step was seen" if plan.inject else "it is off for this job (inject = false)"
        say_wrapped(f"  the start-up hook did not observe the precision: {why}", hang=2)
    if report.next_command is not None:
        say(f"  next   {report.next_command}")  # not wrapped, so that it can be copied
    if len(report.attempts) > 1:
        rows = [(f"attempt {one.attempt}", _in_words(one), _end(one), "") for one in report.attempts]
        _show_columns(("", "", ""), rows)


def report_json(report: PrecisionReport) -> PrecisionShown:
    """Return the report as JSON. `ran` of an attempt is the last precision seen, or the one taken from the plan."""
    return PrecisionShown(
        run=report.run,
        profile=report.plan.profile.name,
        rehearsed=report.plan.rehearsed,
        attempt=report.ran.attempt if report.ran else None,
        wanted=report.plan.ladder[0],
        rows=report.rows,
        verdict=report.verdict.kind if report.verdict else None,
        rung=report.verdict.rung if report.verdict else None,
        sentence=report.sentence,
        next=report.next_command,
        attempts=report.attempts,
    )


def _marked(report: PrecisionReport) -> list[tuple[str, str, str, str]]:
    return [(row.name, row.ran, row.wanted, "differs" if row.differs else "") for row in report.rows]


def _in_words(attempt: AttemptPrecision) -> str:
    """Return a short text for an attempt's precision."""
    if attempt.planned is not None:
        return f"rung {attempt.rung}: {attempt.planned.title}"
    ran = attempt.ran
    if ran is None:
        return "its own, not seen"
    weights = "/".join(sorted(ran.trainable)) or "unknown"
    autocast = f"{'/'.join(ran.autocast)} autocast" if ran.autocast else "no autocast"
    return f"its own: {autocast}, {weights} trained weights, scaler {'on' if ran.scaler else 'off'}"


def _end(attempt: AttemptPrecision) -> str:
    return f"{attempt.state}, {attempt.reason}" if attempt.reason else attempt.state


def _show_columns(titles: tuple[str, str, str], rows: list[tuple[str, str, str, str]]) -> None:
    """Print rows of a name, two texts, and a mark if the terminal has room for it."""
    from launcher.cli.output.columns import Column, print_columns

    name, left, right = titles
    columns = (
        Column(f"  {name}"),
        Column(left, 8, wraps=True),
        Column(right, 8, wraps=True),
        Column("", drop=1),
    )
    print_columns(columns, [(f"  {row[0]}", *row[1:]) for row in rows])
