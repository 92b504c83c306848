"""Processes that the kernel killed because memory ran out."""

from __future__ import annotations

from ..record.files import read_text


def kills() -> int | None:
    """Return how many processes the kernel has killed so far because memory ran out, None if unknown.

    Counts our own cgroup if it has a counter, else the whole host.
    """
    for path in _memory_files():
        try:
            pairs = [line.split() for line in (read_text(path) or "").splitlines()]
        except OSError:
            continue
        counts = [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill"]
        if counts:
            return counts[0]
    return None


def _memory_files() -> list[str]:
    """Return the files that may have the counter: cgroup v2 and v1, both inside a container, and the whole host."""
    own = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own.append("/sys/fs/cgroup%s/memory.events" % path)
        elif "memory" in controllers.split(","):
            own.append("/sys/fs/cgroup/memory%s/memory.oom_control" % path)
    inside = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
    return [*own, *inside, "/proc/vmstat"]
