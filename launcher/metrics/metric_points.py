"""Read the metrics in a run's local copy as points, many lines at once: a run may have millions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic_core import from_json

from launcher.base.json_file import JsonObject
from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.run_files import lines_of
from launcher.metrics.curves import Point, numbers, points

READ_LINES = 4096
_MARK = b'"metric"'
_MOST = 2**53
_MAX_S = 1e12
_point = functools.partial(tuple.__new__, Point)
"""Make a point from a tuple; `Point(…)` takes twice as long."""


def metric_points(local_copy: LocalCopy) -> Iterator[Point]:
    """Yield the points of all fetched metric events, oldest folder first."""
    for path in local_copy.record.event_files():
        with local_copy.record.opened(path) as file:
            every = lines_of(file)
            while lines := list(islice(every, READ_LINES)):
                yield from _points([line for line in lines if _MARK in line])


def _points(lines: list[bytes]) -> list[Point]:
    """Return the points of some lines. An unusual line is parsed separately, like any event."""
    try:
        records = from_json(b"[%s]" % b",".join(lines), allow_inf_nan=False)
    except ValueError:  # a line is unfinished or malformed
        records = []
    if len(records) != len(lines):
        return [point for line in lines for point in _of_event(line)]
    found: list[Point] = []
    for line, record in zip(lines, records, strict=True):
        if (values := _usual(record)) is None:
            found += _of_event(line)
            continue
        attempt, rank, step, time = record["attempt"], record["rank"], record["step"], record["time"]
        for name, value in values.items():
            if type(value) is float:
                found.append(_point((attempt, rank, step, time, name, value)))
            else:
                found += [
                    _point((attempt, rank, step, time, *pair)) for pair in numbers({name: value}).items()
                ]
    return found


def _usual(record: Any) -> JsonObject | None:
    """Return the values of a usual metric event with a step; None for any other line."""
    try:
        values, step, time, source = record["values"], record["step"], record["time"], record.get("source")
        is_usual = (
            record["kind"] == "metric"
            and type(values) is dict
            and type(step)
            is type(record["rank"])
            is type(record["attempt"])
            is type(record["version"])
            is int
            and -_MOST <= step <= _MOST
            and 0 <= record["rank"] <= _MOST
            and 0 <= record["attempt"] <= _MOST
            and record["version"] == 1
            and type(time) is float
            and -_MAX_S <= time <= _MAX_S
            and (source is None or type(source) is str)
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return values if is_usual else None


def _of_event(line: bytes) -> list[Point]:
    event = parse_event(line)
    return [] if event is None else points(event)
