"""The files of this process's control group, for both cgroup versions and inside a container."""

from __future__ import annotations

from ..record.files import read_text


def memory_files(in_v2: str, in_v1: str) -> list[str]:
    """Return the possible paths of a file of the memory controller, whose name differs between the versions."""
    own = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own.append("/sys/fs/cgroup%s/%s" % (path.rstrip("/"), in_v2))
        elif "memory" in controllers.split(","):
            own.append("/sys/fs/cgroup/memory%s/%s" % (path.rstrip("/"), in_v1))
    return [*own, "/sys/fs/cgroup/" + in_v2, "/sys/fs/cgroup/memory/" + in_v1]
