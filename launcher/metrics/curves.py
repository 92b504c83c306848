"""Metrics from events: for each name and step, the value of the latest attempt.

A script's log may give a value without a step. Such a point lies on the time axis: its step is None.
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
"""The prefix of the host's own figures, beside the metrics of the script."""
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Point(NamedTuple):
    """One value of one metric. `time` is the host's clock; `step` is None where the log gave none."""

    attempt: int
    rank: int
    step: int | None
    time: float
    name: str
    value: float


_KEY = operator.itemgetter(*map(Point._fields.index, ("step", "name", "rank")))
Measured = tuple[str, Point]
"""A point, with the run that measured it."""


def points(event: Event) -> list[Point]:
    """Return the numbers of a metric event; other events and other values have none."""
    return _numbers(event) if event.kind == "metric" else []


LOG_BYTES = "log_bytes"
"""A value of an agent's `host` event that is no figure of the host: the size of the attempt's log."""


def host_points(event: Event) -> list[Point]:
    """Return the host's own figures in an event, each named `host/NAME`. The agent gives them no step."""
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


def curve(events: Iterable[Event]) -> list[Point]:
    """Return all points of some events, as `in_order` does."""
    return in_order(point for event in events for point in points(event))


def in_order(found: Iterable[Point]) -> list[Point]:
    """Return points in the order of steps; if several attempts passed a step, those of the latest.

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
    """Return where a point stands among others: by step, those without a step last and by time."""
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
    """Write the points as CSV with a head line; non-finite numbers are nan, inf and -inf. A name is never a formula."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", *Point._fields])
    writer.writerows((run, *point[:-2], cell(point.name), point.value) for run, point in found)
