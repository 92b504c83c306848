"""TensorBoard's files in the mirror, written while a run is followed."""

from __future__ import annotations

import fcntl
import functools
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.runs.curves import HOST, Point, host_points, points
from launcher.runs.lineage import ancestors
from launcher.runs.mirror import parse_event
from launcher.values.record import Event

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

MOST_BYTES = 8 * 1024 * 1024  # of events that are drawn at a time
MOST_POINTS = 2000  # of one name among them; TensorBoard itself shows 1000 of a curve


class TensorBoard:
    """A writer that starts again each time: its files are a view of the mirror, not a record.

    If several clients follow a run, the first one writes. Errors of the disk are reported in `problem`.

    The files are written by a separate process that reads the mirror: tensorboardX takes longer for a point than
    everything else together, and the view of the run should not wait for it.
    """

    def __init__(self, folder: Path) -> None:
        """Write below `folder`, which lies in the mirror, unless another client does."""
        self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = folder.with_name(".tensorboard.lock").open("ab")
        self._writer: subprocess.Popen[bytes] | None = None
        self.problem: str | None = None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._writes = False
        else:
            self._writes = True
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, events: Iterable[Event]) -> None:
        """Have the metrics of rank 0 and the host's figures drawn; the mirror holds these events by now."""
        if not self._writes:
            return
        if self._writer is None:
            if not any(_drawn(event) for event in events):
                return
            self._writer = self._start()
        assert self._writer.stdin is not None  # noqa: S101 - asked for with PIPE
        assert self._writer.stderr is not None  # noqa: S101 - likewise
        try:
            self._writer.stdin.write(b"\n")  # a full pipe takes none, and needs none
        except BrokenPipeError:
            self._writes = False
            self._tell(self._writer.stderr.read())

    def _tell(self, said: bytes) -> None:
        """Note why the writer has left: its last words say it."""
        words = said.decode(errors="replace").strip().splitlines() or ["the writer left"]
        self.problem = f"{self._folder}: {words[-1][-200:]}"

    def _start(self) -> subprocess.Popen[bytes]:
        writer = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._folder)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is the follower's; in a session of its own its niceness would count for nothing
        )
        assert writer.stdin is not None  # noqa: S101 - asked for with PIPE
        os.set_blocking(writer.stdin.fileno(), False)
        return writer

    def close(self) -> None:
        """Have the rest drawn, and close; `problem` is then the last word."""
        if self._writer is not None:
            _, said = self._writer.communicate()
            if self._writes and self._writer.returncode != 0:
                self._tell(said)
        self._lock.close()


def main() -> None:
    """Draw the mirror around the folder that is named, at every byte of standard input; leave with what the disk says.

    The runs that it continues come first, up to where it began.
    """
    os.nice(19)  # a rendering can wait
    threading.excepthook = lambda failure: _give_up(failure.exc_value)
    # tensorboardX would import it where there is one: 1.5 s, and numbers need none of it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from tensorboardX import SummaryWriter

    folder = Path(sys.argv[1])
    offsets: dict[Path, int] = {}
    is_over = False
    try:
        with SummaryWriter(str(folder)) as writer:
            for one, until in ancestors(folder.parent):
                _draw(writer, one.folder, {}, until)
            while not is_over:
                is_over = not os.read(0, 1 << 16)
                _draw(writer, folder.parent, offsets, math.inf)
    except OSError as error:
        _give_up(error)


def _draw(writer: SummaryWriter, run: Path, offsets: dict[Path, int], until: float) -> None:
    """Draw what is new of a run's mirror, up to a step."""
    for path in sorted(run.glob("[0-9]*/events.jsonl")):
        while lines := _news(path, offsets):
            for point in _thinned(lines, until):
                if point.step is None:  # the time axis: whole seconds since the run began
                    prefix = "" if point.name.startswith(HOST) else "by_seconds/"
                    name, step = prefix + point.name, round(max(0.0, point.time - _began(run)))
                else:
                    name, step = point.name, point.step
                writer.add_scalar(name, point.value, step, walltime=point.time)


@functools.cache
def _began(run: Path) -> float:
    """Return the time of a run's first event."""
    for path in sorted(run.glob("[0-9]*/events.jsonl")):
        with path.open("rb") as file:
            event = parse_event(file.readline(MOST_BYTES))
        if event is not None:
            return event.time
    return 0.0


def _give_up(error: BaseException | None) -> None:
    """Say why, and leave at once: at an ordinary end tensorboardX would try again, and wait for its thread."""
    sys.stderr.write(f"{error.strerror if isinstance(error, OSError) else error}\n")
    sys.stderr.flush()
    os._exit(1)


def _news(path: Path, offsets: dict[Path, int]) -> list[bytes]:
    """Return the next whole lines of a file; none at its end."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < offsets.get(path, 0):
            offsets[path] = 0  # the host's file began again
        file.seek(offsets.get(path, 0))
        lines = file.readlines(MOST_BYTES)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    offsets[path] = offsets.get(path, 0) + sum(map(len, lines))
    return lines


def _drawn(event: Event, until: float = math.inf) -> list[Point]:
    """Return what is drawn of an event: points of rank 0 up to a step, and the host's figures of the run itself."""
    if event.rank != 0:
        return []
    found = [point for point in points(event) if point.step is None or point.step <= until]
    return found + (host_points(event) if until == math.inf else [])


def _thinned(lines: list[bytes], until: float) -> list[Point]:
    """Return the points to draw in some lines, up to a step; of a name with too many, evenly chosen ones and the last."""
    found: dict[str, list[Point]] = {}
    for line in lines:
        event = parse_event(line)
        for point in _drawn(event, until) if event is not None else ():
            found.setdefault(point.name, []).append(point)
    kept = []
    for series in found.values():
        stride = math.ceil(len(series) / MOST_POINTS)
        kept += series[::-stride][::-1]  # counted from the last, which stays
    return kept


if __name__ == "__main__":
    main()
