"""Metrics from events: for each name and step, the value of the latest attempt.

A script's log may contain a value without a step. The step of such a point is None: it belongs on a time
axis.
"""

from __future__ import annotations

import csv
import itertools
import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, TextIO

from launcher.metrics.csv_cell import cell
from launcher.values.public_result import as_json
from launcher.values.record import Event

HOST = "host/"
"""The prefix of the host's figures, which appear beside the script's metrics."""
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Point(NamedTuple):
    """One value of one metric. `time` is the host's clock; `step` is None if the log gave none."""

    attempt: int
    rank: int
    step: int | None
    time: float
    name: str
    value: float


_KEY = operator.itemgetter(*map(Point._fields.index, ("step", "name", "rank")))
Measured = tuple[str, Point]
"""A point, and the id of the run that measured it."""


def points(event: Event) -> list[Point]:
    """Return the numbers of a metric event as points; empty for other events. Other values are left out."""
    return _numbers(event) if event.kind == "metric" else []


LOG_BYTES = "log_bytes"
"""The size of the attempt's log. It is in an agent's `host` events, but is not a figure of the host."""


def host_points(event: Event) -> list[Point]:
    """Return the host's figures in an event, each named `host/NAME`. They have no step."""
    if event.kind != "host":
        return []
    return [point for point in _numbers(event, HOST) if point.name != f"{HOST}{LOG_BYTES}"]


def _numbers(event: Event, prefix: str = "") -> list[Point]:
    attempt = event.attempt or 0
    return [
        Point(attempt, event.rank, event.step, event.time, prefix + name, number)
        for name, number in numbers(event.values).items()
    ]


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return the values of an event that are numbers."""
    found = {}
    for name, value in values.items():
        number = _NON_FINITE.get(value) if isinstance(value, str) else value
        if type(number) is int:
            number = _float(number)
        if type(number) is float:  # a bool does not count as a number
            found[name] = number
    return found


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond the largest float
        return math.inf if number > 0 else -math.inf


def in_order(found: Iterable[Point]) -> list[Point]:
    """Return points in the order of steps; of several attempts at a step, only those of the latest.

    Points without a step come last, in the order of time.
    """
    every = list(found)
    stepless = sorted((point for point in every if point.step is None), key=order)
    stepped = [point for point in every if point.step is not None] if stepless else every
    keys = list(map(_KEY, stepped))
    if not all(map(operator.lt, keys, itertools.islice(keys, 1, None))):
        latest: dict[tuple[int, str, int], Point] = {}
        for key, point in zip(keys, stepped, strict=True):
            earlier = latest.get(key)
            if earlier is None or earlier.attempt <= point.attempt:
                latest[key] = point
        stepped = [latest[key] for key in sorted(latest)]
    return [*stepped, *stepless]


def order(point: Point) -> tuple[bool, int, float, str, int]:
    """Return a point's sort key: by step; points without a step come last, by time."""
    if point.step is None:
        return (True, 0, point.time, "", 0)
    return (False, point.step, 0.0, point.name, point.rank)


def record(run: str, point: Point, *, rehearsed: bool = False) -> dict[str, Any]:
    """Return a point as one metric line: {version, kind, run, attempt, rank, step, time, name, value, rehearsed}."""
    attempt, rank, step, time, name, value = point
    return {
        "version": 1,
        "kind": "metric",
        "run": run,
        "attempt": attempt,
        "rank": rank,
        "step": step,
        "time": time,
        "name": name,
        "value": as_json(value),
        "rehearsed": rehearsed,
    }


def write_table(found: Iterable[Measured], file: TextIO) -> None:
    """Write the points as CSV with a header; non-finite numbers are nan, inf and -inf. Names are never formulas."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", *Point._fields])
    writer.writerows((run, *point[:-2], cell(point.name), point.value) for run, point in found)
