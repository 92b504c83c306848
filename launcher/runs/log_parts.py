"""A part of a run's log: its last lines, or what was printed in its last minutes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from launcher.runs.curves import LOG_BYTES
from launcher.runs.json_file import read_json
from launcher.runs.mirror import Mirror, parse_event
from launcher.values.record import FolderStart

BLOCK = 1 << 16


def last_lines(logs: list[Path], count: int) -> dict[Path, int]:
    """Return where to begin in each log, in bytes, so that the last `count` lines of all of them are shown."""
    starts = {path: path.stat().st_size for path in logs}
    for path in reversed(logs):
        if count <= 0:
            break
        starts[path], found = _start_of_last(path, count)
        count -= found
    return starts


def lines_since(mirror: Mirror, seconds: float) -> dict[Path, int]:
    """Return where to begin in each log for what was printed in the last seconds of a run, or a little more.

    The seconds count back from the run's end, or from the last sign of a live one, by its host's clock. Agents note the
    size of the log about every ten seconds.
    """
    logs = mirror.logs()
    sizes = {path: list(_sizes(path.parent)) for path in logs}
    ends = [time for noted in sizes.values() for time, _ in noted]
    state = mirror.state()
    ends += [state.time] if state is not None and state.time is not None else []
    begin = max(ends, default=0.0) - seconds
    starts = dict.fromkeys(logs, 0)
    for path in logs:
        earlier = [size for time, size in sizes[path] if time <= begin]
        starts[path] = _start_of_line(path, earlier[-1]) if earlier else 0
    for path, after in pairwise(logs):
        if sizes[after] and sizes[after][0][0] <= begin and path.parent.name != after.parent.name:
            starts[path] = path.stat().st_size  # the next attempt had begun
    return starts


def _sizes(folder: Path) -> Iterator[tuple[float, int]]:
    """Yield when an attempt's log had which size, from its beginning on."""
    began = FolderStart.lenient(read_json(folder / "attempt.json")).time
    if began is not None:
        yield began, 0
    events = folder / "events.jsonl"
    if not events.is_file():
        return
    with events.open("rb") as file:
        for line in file:
            event = parse_event(line) if LOG_BYTES.encode() in line else None
            size = event.values.get(LOG_BYTES) if event is not None and event.kind == "host" else None
            if event is not None and type(size) is int and size >= 0:
                yield event.time, size


def _start_of_last(path: Path, count: int) -> tuple[int, int]:
    """Return where the last `count` lines of a file begin, and how many lines those are."""
    found = 0
    with path.open("rb") as file:
        end = file.seek(0, 2)
        block_end = end
        while block_end > 0:
            start = max(0, block_end - BLOCK)
            file.seek(start)
            data = file.read(block_end - start)
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                if start + at + 1 == end:
                    continue  # it ends the last line, and begins none
                found += 1
                if found == count:
                    return start + at + 1, found
            block_end = start
    return 0, found + (end > 0)


def _start_of_line(path: Path, offset: int) -> int:
    """Return where the line that has a byte begins."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        end = min(offset, size)
        while end > 0:
            start = max(0, end - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
