"""TensorBoard's files in the local copy, written while launcher follows a run."""

from __future__ import annotations

import contextlib
import fcntl
import math
import time
from collections import Counter
from collections.abc import Sequence

from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.run_record import MAX_GROWTH
from launcher.metrics.ancestry import ancestors
from launcher.metrics.curves import HOST, Point, host_points, points
from launcher.metrics.event_file import EventFile
from launcher.values.record import Event

MAX_BYTES = 8 * 1024 * 1024
"""The size of one read from the events of a run that this one continues."""
MAX_POINTS = 1000
"""The maximum number of points per name, at once and per second. TensorBoard shows at most this many points of a curve."""


class TensorBoard:
    """A writer that first removes the files of earlier writers: the files are a view of the local copy, not a record.

    If several clients follow a run, the first one writes. Disk errors are reported in `problem`.
    """

    def __init__(self, local_copy: LocalCopy) -> None:
        """Write to the local copy's TensorBoard folder, unless another client does. Raises OSError."""
        self._local_copy, self._folder = local_copy, local_copy.tensorboard
        local_copy.make_folder()
        self._lock = local_copy.files.open(".tensorboard.lock", "ab")
        self._file: EventFile | None = None
        self._began: float | None = None
        self._room, self._added_s = float(MAX_POINTS), time.monotonic()
        self.problem: str | None = None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._writes = False
        else:
            self._writes = True
            with contextlib.suppress(OSError):  # an error is reported at the first write
                local_copy.files.remove_tree(self._folder)

    def add(self, events: Sequence[Event]) -> None:
        """Draw the metrics of rank 0 and the host's figures; the local copy must already hold these events."""
        now_s = time.monotonic()
        self._room = min(MAX_POINTS, self._room + MAX_POINTS * (now_s - self._added_s))
        self._added_s = now_s
        drawn = _thinned(events, math.inf, max(1, int(self._room))) if self._writes else []
        if not drawn:
            return
        self._room -= max(Counter(point.name for point in drawn).values())
        try:
            if self._file is None:
                self._file = EventFile(self._local_copy.files, self._folder)
                self._draw_ancestors(self._file)
            if self._began is None:
                self._began = _began(self._local_copy)
            self._file.add(map(self._placed, drawn))
        except OSError as error:
            self._writes = False
            self.problem = f"{self._folder}: {error.strerror}"

    def close(self) -> None:
        """Close the files; another client may then write them."""
        if self._file is not None:
            self._file.close()
        self._lock.close()

    def _draw_ancestors(self, file: EventFile) -> None:
        """Draw the runs that this one continues, each up to the step where its successor began."""
        for one, until in ancestors(self._local_copy):
            self._began = _began(one)
            for path in one.record.events_of_leader():
                with one.files.open(path, most=MAX_GROWTH) as lines:
                    while some := lines.readlines(MAX_BYTES):
                        events = [event for event in map(parse_event, some) if event is not None]
                        file.add(map(self._placed, _thinned(events, until)))
        self._began = None

    def _placed(self, point: Point) -> tuple[str, int, float, float]:
        """Return a point's curve, its place on it, its value and its time."""
        if point.step is not None:
            return point.name, point.step, point.value, point.time
        # the time axis: whole seconds since the run began
        prefix = "" if point.name.startswith(HOST) else "by_seconds/"
        return (
            prefix + point.name,
            round(max(0.0, point.time - (self._began or 0.0))),
            point.value,
            point.time,
        )


def _began(local_copy: LocalCopy) -> float:
    """Return the time of the first event in a run's local copy."""
    for path in local_copy.record.events_of_leader():
        with local_copy.files.open(path, most=MAX_GROWTH) as file:
            event = parse_event(file.readline(MAX_BYTES))
        if event is not None:
            return event.time
    return 0.0


def _thinned(events: Sequence[Event], until: float, most: int = MAX_POINTS) -> list[Point]:
    """Return the points to draw up to a step, in order: `most` evenly chosen events of those with the same names."""
    found: dict[tuple[str, ...], list[int]] = {}
    for place, event in enumerate(events):
        if event.rank == 0 and event.kind in ("metric", "host"):
            found.setdefault((event.kind, *event.values), []).append(place)
    chosen: list[int] = []
    for places in found.values():
        chosen += places[:: -math.ceil(len(places) / most)]  # from the end, so that the last one is kept
    kept: list[Point] = []
    for event in map(events.__getitem__, sorted(chosen)):
        kept += [point for point in points(event) if point.step is None or point.step <= until]
        kept += host_points(event) if until == math.inf else []
    return kept
