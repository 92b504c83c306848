"""A comparison of runs in a terminal: a column for each run, or a row for each if the runs are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from launcher.cli.output.columns import Column, print_columns
from launcher.cli.output.figures import duration_text, value_text
from launcher.cli.text.metrics_table import rank_of
from launcher.compare.code_differences import shortened
from launcher.compare.comparing import ComparedRun, Comparison
from launcher.metrics.metric_results import MetricResult
from launcher.planning.plan_differences import NONE, UNKNOWN, Difference

MAX_BESIDE = 6
"""The most runs that are shown as columns. More runs get a row each."""
_LABEL_CELLS = 14
_MIN_CELLS = 8
_GAP_CELLS = 2
_MAX_FILES = 5
_MAX_LETTERS = 160
_FIRST_KEYS = ("job", "host", "profile", "rehearsed")
_REASON_SHOWN = ("failed", "waiting", "resuming")


class ComparisonRow(NamedTuple):
    """A label, and one text for each run."""

    label: str
    words: tuple[str, ...]


def show_comparison(comparison: Comparison, width: int | None) -> list[str]:
    """Print the differences, then each run's outcome. Return the titles of columns left out for lack of room."""
    differences, outcome = list(difference_rows(comparison)), list(outcome_rows(comparison.runs))
    count = len(comparison.runs)
    has_room = width is None or _LABEL_CELLS + count * (_GAP_CELLS + _MIN_CELLS) <= width
    if count <= MAX_BESIDE and has_room:
        return _show_beside(comparison, differences, outcome, width)
    return _show_below(comparison, differences, outcome)


def _show_beside(
    comparison: Comparison,
    differences: Sequence[ComparisonRow],
    outcome: Sequence[ComparisonRow],
    width: int | None,
) -> list[str]:
    """Print a column for each run."""
    runs = comparison.runs
    files = list(_file_rows(comparison))
    blank = [ComparisonRow("", tuple("" for _ in runs))] if differences or files else []
    columns = (
        Column("", _LABEL_CELLS, wraps=True),
        *(Column(name, _MIN_CELLS, wraps=True) for name in names_of(runs)),
    )
    rows = [*differences, *files, *blank, *outcome]
    most = None if width is None else _MAX_LETTERS
    return print_columns(columns, [(row.label, *(word[:most] for word in row.words)) for row in rows])


def _show_below(
    comparison: Comparison, differences: Sequence[ComparisonRow], outcome: Sequence[ComparisonRow]
) -> list[str]:
    """Print a row for each run. In a narrow terminal, columns are left out, the last ones first."""
    shown = [*differences, *outcome]
    first = {row.label for row in outcome if row.label in ("state", "loss")}
    columns = (
        Column("RUN"),
        *(
            Column(row.label, _MIN_CELLS, drop=0 if row.label in first else 1 + number)
            for number, row in enumerate(shown)
        ),
    )
    cells = [row.words for row in shown]
    lines = [
        (name, *(words[number] for words in cells)) for number, name in enumerate(names_of(comparison.runs))
    ]
    return print_columns(columns, lines)


def names_of(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the last part of each run's id, or the complete ids if two last parts are equal."""
    short = [run.local_copy.short for run in runs]
    return short if len({*short}) == len(short) else [run.local_copy.run for run in runs]


def difference_rows(comparison: Comparison) -> Iterator[ComparisonRow]:
    """Yield the differences: job, host and card, precision, settings, the rest of the plan, packages, code and data."""
    plan, used = list(comparison.plan), _used(comparison.runs)
    first = sorted(
        (one for one in plan if one.key in _FIRST_KEYS), key=lambda one: _FIRST_KEYS.index(one.key)
    )
    yield from (ComparisonRow("card" if one.key == "profile" else one.key, one.words) for one in first)
    yield from used
    for group in ("settings", "plan", "packages"):
        yield from (
            _row(one)
            for one in plan
            if one.group == group
            and one.key not in _FIRST_KEYS
            and not (one.key == "ladder" and one.words in [row.words for row in used])
        )
    yield from _differing("torch", comparison.runs, lambda run: run.torch or "not seen")
    yield from (ComparisonRow(tree, _sent(digests, comparison.runs)) for tree, digests in comparison.trees)


def _row(difference: Difference) -> ComparisonRow:
    if difference.key == "ladder":
        return ComparisonRow("precision planned", difference.words)
    return ComparisonRow(difference.key.removeprefix("settings."), difference.words)


def _sent(versions: Sequence[str | None], runs: Sequence[ComparedRun]) -> tuple[str, ...]:
    """Return the uploaded version for each run, shortened; NONE or UNKNOWN where it is missing."""
    return tuple(
        shortened(version) if version else NONE if run.has_manifest else UNKNOWN
        for version, run in zip(versions, runs, strict=True)
    )


def _used(runs: Sequence[ComparedRun]) -> list[ComparisonRow]:
    return list(_differing("precision", runs, lambda run: run.precision or "not seen"))


def _differing(
    label: str, runs: Sequence[ComparedRun], words: Callable[[ComparedRun], str]
) -> Iterator[ComparisonRow]:
    row = ComparisonRow(label, tuple(map(words, runs)))
    if len({*row.words}) > 1:
        yield row


def _file_rows(comparison: Comparison) -> Iterator[ComparisonRow]:
    for one in comparison.files[:_MAX_FILES]:
        yield ComparisonRow(f"  {one.path}", _sent(one.versions, comparison.runs))
    if (more := len(comparison.files) - _MAX_FILES) > 0:
        yield ComparisonRow(f"  and {more} more files", tuple("" for _ in comparison.runs))


def outcome_rows(runs: Sequence[ComparedRun]) -> Iterator[ComparisonRow]:
    """Yield the outcome: state, attempts if a run had several, time, step, and each metric, the losses first."""
    yield ComparisonRow("state", tuple(map(state_words, runs)))
    if any((run.attempts or 1) > 1 for run in runs):
        yield ComparisonRow(
            "attempts", tuple(NONE if run.attempts is None else str(run.attempts) for run in runs)
        )
    yield ComparisonRow("time", tuple(map(_time, runs)))
    yield ComparisonRow("step", tuple(map(_step, runs)))
    for name in sorted(dict.fromkeys(name for run in runs for name in run.metrics), key=rank_of):
        found = [run.metrics.get(name) for run in runs]
        yield ComparisonRow(name, tuple(NONE if one is None else value_text(one.final) for one in found))
        if any(one is not None and _is_worse_now(one) for one in found):
            yield ComparisonRow(f"best {name}", tuple(map(_best, found)))


def state_words(run: ComparedRun) -> str:
    """Return a run's last known state. A failed, waiting or resuming run has its reason too."""
    if run.state is None:
        return "not known yet"
    return f"{run.state}: {run.reason}" if run.reason and run.state in _REASON_SHOWN else run.state


def _time(run: ComparedRun) -> str:
    if run.seconds is None:
        return NONE
    return f"{duration_text(run.seconds)}{'' if run.has_ended else ' so far'}"


def _step(run: ComparedRun) -> str:
    if run.step is None:
        return NONE
    return f"{run.step}/{run.steps}" if run.steps else str(run.step)


def _is_worse_now(one: MetricResult) -> bool:
    return one.best is not None and one.best != one.final


def _best(one: MetricResult | None) -> str:
    if one is None or one.best is None:
        return NONE
    return value_text(one.best) if one.best_step is None else f"{value_text(one.best)} @{one.best_step}"
