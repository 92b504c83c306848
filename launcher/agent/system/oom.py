"""Counts the processes that the kernel killed because memory ran out."""

from __future__ import annotations

from ..record.files import read_text
from .cgroup import memory_files


def kills() -> int | None:
    """Return how many processes the kernel has killed so far because memory ran out; None if unknown.

    Counts this process's cgroup if it has a counter, else the whole host.
    """
    for path in [*memory_files("memory.events", "memory.oom_control"), "/proc/vmstat"]:
        try:
            pairs = [line.split() for line in (read_text(path) or "").splitlines()]
        except OSError:
            continue
        counts = [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill"]
        if counts:
            return counts[0]
    return None
