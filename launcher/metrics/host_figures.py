"""The host's figures during a run: use of cards, CPUs, memory and disk, about every ten seconds.

A week's run with eight cards has two million figures, so they are streamed, not held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.run_files import lines_of
from launcher.metrics.curves import Point, host_points

_MARK = b'"kind":"host"'  # the form that agents write; only such lines are decoded


class FigureSummary(NamedTuple):
    """A figure over the whole run."""

    last: float
    mean: float
    least: float
    most: float


def host_figures(local_copy: LocalCopy) -> Iterator[Point]:
    """Yield a run's figures in the order of time, without those of the runs that it continues."""
    for path in local_copy.record.events_of_leader():
        with local_copy.record.opened(path) as file:
            for line in lines_of(file):
                event = parse_event(line) if _MARK in line else None
                if event is not None:
                    yield from host_points(event)


def summarize(figures: Iterable[Point]) -> dict[str, FigureSummary]:
    """Return a summary of each figure, by name."""
    found: dict[str, FigureSummary] = {}
    counts: dict[str, int] = {}
    for *_, name, value in figures:
        last = found.get(name, FigureSummary(value, 0.0, value, value))
        count = counts[name] = counts.get(name, 0) + 1
        mean = last.mean + (value - last.mean) / count
        found[name] = FigureSummary(value, mean, min(last.least, value), max(last.most, value))
    return dict(sorted(found.items()))


def thinned(figures: Iterable[Point], most: int) -> dict[str, list[Point]]:
    """Return points by name, fewer than twice `most` per name: if needed, neighbouring points are replaced by their mean."""
    series: dict[str, list[Point]] = {}
    sizes: dict[str, int] = {}  # per name, the number of figures behind each kept point
    groups: dict[str, list[Point]] = {}
    for point in figures:
        group = groups.setdefault(point.name, [])
        group.append(point)
        if len(group) < sizes.setdefault(point.name, 1):
            continue
        kept = series.setdefault(point.name, [])
        kept.append(_mean(group))
        group.clear()
        if len(kept) == 2 * most:
            series[point.name] = [_mean(kept[start : start + 2]) for start in range(0, len(kept), 2)]
            sizes[point.name] *= 2
    return series


def _mean(group: list[Point]) -> Point:
    if len(group) == 1:
        return group[0]
    return group[0]._replace(value=sum(point.value for point in group) / len(group))
