"""Metrics as a table: a row for each step, a column for each metric."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from launcher.cli.output.columns import Column
from launcher.metrics.curves import Measured, Point

_FIRST = ("loss", "train_loss", "eval_loss", "val_loss", "valid_loss", "validation_loss", "accuracy")
_NEXT = ("grad_norm", "learning_rate", "lr", "tokens_per_s")
"""Metrics in the order of their columns. Other evaluations come between the two tuples, and the rest at the end.

A narrow terminal drops the last columns first.
"""


class _Place(NamedTuple):
    """The key of a row. Points without a step share a row if their times are equal."""

    run: str
    rank: int
    step: int | None
    time: float | None


def metrics_table(measured: Iterable[Measured]) -> tuple[tuple[Column, ...], list[list[str]]]:
    """Return columns and rows. The rows are in the order of the points. A column for runs, or ranks, appears if several occur."""
    lines: dict[_Place, dict[str, float]] = {}
    for run, point in measured:
        lines.setdefault(_place(run, point), {})[point.name] = point.value
    names = sorted(dict.fromkeys(name for values in lines.values() for name in values), key=rank_of)
    has_runs = len({place.run for place in lines}) > 1
    has_ranks = len({place.rank for place in lines}) > 1
    columns = (
        *([Column("RUN", drop=1)] if has_runs else []),
        Column("STEP", is_figure=True),
        *([Column("RANK", is_figure=True)] if has_ranks else []),
        *(Column(name, 10, drop=number, is_figure=True) for number, name in enumerate(names)),
    )
    return columns, [
        [
            *([place.run.rpartition("-")[2]] if has_runs else []),
            _step(place),
            *([str(place.rank)] if has_ranks else []),
            *(f"{values[name]:.6g}" if name in values else "-" for name in names),
        ]
        for place, values in lines.items()
    ]


def _place(run: str, point: Point) -> _Place:
    return _Place(run, point.rank, point.step, point.time if point.step is None else None)


def _step(place: _Place) -> str:
    """Return the step of a row, or its time if it has no step."""
    if place.time is not None:
        return f"at {time.strftime('%H:%M:%S', time.localtime(place.time))}"
    return str(place.step)


def rank_of(name: str) -> int:
    """Return a metric's sort key: losses and accuracy, other evaluations, gradient norm and rates, then the rest."""
    if name in _FIRST:
        return _FIRST.index(name)
    if name.startswith(("eval_", "val_", "test_")):
        return 20
    return 30 + _NEXT.index(name) if name in _NEXT else 40
