"""What the kernel ended for want of memory."""

from __future__ import annotations

from ..record.rundir import read_text


def kills() -> int | None:
    """Return how many processes of ours the kernel has ended for want of memory, ever; None where that is not told.

    By our own cgroup, else by the whole host.
    """
    for path in _memory_files():
        try:
            pairs = [line.split() for line in (read_text(path) or "").splitlines()]
        except OSError:
            continue
        found = [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill"]
        if found:
            return found[0]
    return None


def _memory_files() -> list[str]:
    """Return where the kernel may count: cgroup v2, v1, both also as seen from inside a container, the whole host."""
    own = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own.append("/sys/fs/cgroup%s/memory.events" % path)
        elif "memory" in controllers.split(","):
            own.append("/sys/fs/cgroup/memory%s/memory.oom_control" % path)
    inside = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
    return [*own, *inside, "/proc/vmstat"]
