"""The local copies of the runs that a run continues, and one curve over all of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from launcher.copy import index
from launcher.copy.local_copy import LocalCopy, local_copy_of
from launcher.copy.run_id import RUN_ID
from launcher.metrics.curves import Measured, in_order, order
from launcher.metrics.metric_points import metric_points


class Ancestor(NamedTuple):
    """A run that another one continues. Its steps after `until` are not part of the joined curve."""

    local_copy: LocalCopy
    until: float


def ancestors(local_copy: LocalCopy) -> list[Ancestor]:
    """Return the runs that a run continues, the oldest first.

    The runs before a run without a local copy are unknown, and missing from the list.
    """
    found: list[Ancestor] = []
    seen = {local_copy.run}
    until, parent = math.inf, local_copy.record.parent()
    while parent is not None and RUN_ID.fullmatch(parent.run) and parent.run not in seen:
        seen.add(parent.run)
        until = min(until, parent.step)
        found.append(Ancestor(_copy_of(parent.run, local_copy.folder.parent), until))
        parent = found[-1].local_copy.record.parent()
    return found[::-1]


def _copy_of(run: str, beside: Path) -> LocalCopy:
    """Return the local copy of a run in a folder; if it is missing, the one in the index."""
    one = LocalCopy(run, beside)
    return one if one.files.is_folder() else local_copy_of(run, index.copies_of(run))


def joined(local_copy: LocalCopy) -> list[Measured]:
    """Return the points of a run and of the runs that it continues, each with its run's id, no step twice.

    An ancestor contributes the points up to the step from which its successor started. Points are in the
    order of steps; those without a step come last.
    """
    earlier = ancestors(local_copy)
    if not earlier:
        return [(local_copy.run, point) for point in in_order(metric_points(local_copy))]
    latest: dict[tuple[str, int, int], Measured] = {}
    stepless: list[Measured] = []
    for one, until in (*earlier, Ancestor(local_copy, math.inf)):
        for point in in_order(metric_points(one)):
            if point.step is None:
                stepless.append((one.run, point))
            elif point.step <= until:
                latest[point.name, point.rank, point.step] = (one.run, point)
    return sorted([*latest.values(), *stepless], key=lambda measured: order(measured[1]))
