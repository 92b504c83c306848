"""What one process may and can do, as the kernel says: two that are alike in it do the same with the same command."""

from __future__ import annotations

import contextlib
import os
import re
import resource

_STATUS = re.compile(
    "^(?:Umask|Uid|Gid|Groups|Cap.*|NoNewPrivs|Seccomp.*|SigBlk|Cpus_allowed|Mems_allowed):.*$", re.MULTILINE
)
_CORE = re.compile("^Max core file size .*$", re.MULTILINE)
"""A limit whose lower value each of our processes sets for itself."""
_SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_FILES = ("cgroup", "attr/current", "oom_score_adj")
_LINKS = ("exe", *(f"ns/{name}" for name in _SPACES))


def traits(pid: int) -> dict[str, object]:
    """Return them by name: user, groups, rights, umask, limits, priority, namespaces, root, control group, Python. Raises OSError."""
    base = f"/proc/{pid}"
    found: dict[str, object] = {
        "status": _STATUS.findall(_text(f"{base}/status")),
        "limits": _CORE.sub("", _text(f"{base}/limits")),
        "core": resource.prlimit(pid, resource.RLIMIT_CORE)[1],
        "priority": (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)),
    }
    root = os.stat(f"{base}/root")
    found["root"] = (root.st_dev, root.st_ino)
    for name in _LINKS:
        with contextlib.suppress(FileNotFoundError):  # a kernel without this kind of namespace
            found[name] = os.readlink(f"{base}/{name}")
    for name in _FILES:
        with contextlib.suppress(OSError):  # a label cannot be read without a security module
            found[name] = _text(f"{base}/{name}")
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
