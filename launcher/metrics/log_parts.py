"""A part of a run's log: its last lines, or the output of its last minutes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.run_files import lines_of
from launcher.metrics.curves import LOG_BYTES
from launcher.values.record import FolderStart

BLOCK = 1 << 16


def last_lines(local_copy: LocalCopy, count: int) -> dict[str, int]:
    """Return the byte offset at which to start each log, to show the last `count` lines of all of them."""
    starts = {path: _size(local_copy, path) for path in local_copy.record.logs()}
    for path in reversed(starts):
        if count <= 0:
            break
        starts[path], found = _start_of_last(local_copy, path, count)
        count -= found
    return starts


def lines_since(local_copy: LocalCopy, seconds: float) -> dict[str, int]:
    """Return the byte offset at which to start each log, to show a run's last seconds or a little more.

    The seconds count back from the run's end, or from a live run's last recorded event, by its host's clock.
    Agents record the size of the log about every ten seconds.
    """
    logs = local_copy.record.logs()
    sizes = {path: list(_sizes(local_copy, path.rpartition("/")[0])) for path in logs}
    ends = [time for noted in sizes.values() for time, _ in noted]
    state = local_copy.state()
    ends += [state.time] if state is not None and state.time is not None else []
    begin = max(ends, default=0.0) - seconds
    starts = dict.fromkeys(logs, 0)
    for path in logs:
        earlier = [size for time, size in sizes[path] if time <= begin]
        starts[path] = _start_of_line(local_copy, path, earlier[-1]) if earlier else 0
    for path, after in pairwise(logs):
        if sizes[after] and sizes[after][0][0] <= begin and path.split("/")[-2] != after.split("/")[-2]:
            starts[path] = _size(local_copy, path)  # the next attempt had begun by then
    return starts


def _size(local_copy: LocalCopy, path: str) -> int:
    status = local_copy.files.status(path)
    return 0 if status is None else status.st_size


def _sizes(local_copy: LocalCopy, folder: str) -> Iterator[tuple[float, int]]:
    """Yield the time and the size of an attempt's log, from its beginning."""
    began = FolderStart.lenient(local_copy.files.read_json(f"{folder}/attempt.json")).time
    if began is not None:
        yield began, 0
    events = f"{folder}/events.jsonl"
    if not local_copy.files.exists(events):
        return
    with local_copy.record.opened(events) as file:
        for line in lines_of(file):
            event = parse_event(line) if LOG_BYTES.encode() in line else None
            size = event.values.get(LOG_BYTES) if event is not None and event.kind == "host" else None
            if event is not None and type(size) is int and size >= 0:
                yield event.time, size


def _start_of_last(local_copy: LocalCopy, path: str, count: int) -> tuple[int, int]:
    """Return the start of the last `count` lines of a file, and the number of lines found."""
    found = 0
    with local_copy.record.opened(path) as file:
        end = file.seek(0, 2)
        block_end = end
        while block_end > 0:
            start = max(0, block_end - BLOCK)
            file.seek(start)
            data = file.read(block_end - start)
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                if start + at + 1 == end:
                    continue  # this newline ends the last line, and begins none
                found += 1
                if found == count:
                    return start + at + 1, found
            block_end = start
    return 0, found + (end > 0)


def _start_of_line(local_copy: LocalCopy, path: str, offset: int) -> int:
    """Return the start of the line that contains a byte."""
    with local_copy.record.opened(path) as file:
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
