"""Metrics from events: for each name and step, the value of the latest attempt.

A script's log may give a value without a step. Such a point lies on the time axis: its step is None.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

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
    """Return all points in the order of steps; if several attempts passed a step, those of the latest.

    Points without a step come last, in the order of time.
    """
    latest: dict[tuple[str, int, int], Point] = {}
    stepless = []
    for event in events:
        for point in points(event):
            if point.step is None:
                stepless.append(point)
                continue
            key = (point.name, point.rank, point.step)
            earlier = latest.get(key)
            if earlier is None or earlier.attempt <= point.attempt:
                latest[key] = point
    return sorted([*latest.values(), *stepless], key=order)


def order(point: Point) -> tuple[bool, int, float, str, int]:
    """Return where a point stands among others: by step, those without a step last and by time."""
    if point.step is None:
        return (True, 0, point.time, "", 0)
    return (False, point.step, 0.0, point.name, point.rank)


def as_json(value: float) -> float | str:
    """Return a number in a form that strict JSON allows: a non-finite one becomes its name."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def record(run: str, point: Point, *, rehearsed: bool = False) -> dict[str, Any]:
    """Return a point as one metric line: {version, kind, run, attempt, rank, step, time, name, value, rehearsed}."""
    line = {"version": 1, "kind": "metric", "run": run, **point._asdict(), "value": as_json(point.value)}
    return {**line, "rehearsed": rehearsed}


def table(found: Iterable[Measured]) -> str:
    """Return the points as CSV with a head line; non-finite numbers are nan, inf and -inf."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["run", *Point._fields], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(record(run, point) for run, point in found)
    return buffer.getvalue()
