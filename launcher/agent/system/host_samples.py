"""Samples of the host's CPU use, used memory and free disk. Reading them starts no process.

In a container the memory is the container's. On macOS only the disk is sampled: CPU and memory would need
programs that cost too much for these figures.
"""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional

from ..record.files import read_text
from . import process
from .cgroup import memory_files

GB = 1e9


class CpuTimes(NamedTuple):
    """How long the CPUs of a host have been busy since its boot, and how long in total, in ticks."""

    busy: int
    total: int


class HostSamples:
    """Reads the figures of this host. CPU use is the mean since the previous reading."""

    def __init__(self, folder: str) -> None:
        """Start now. The sampled disk is the file system that contains `folder`."""
        self._folder = folder
        self._cpu_times = read_cpu_times(_text_of("/proc/stat"))

    def read(self) -> Dict[str, float]:
        """Return the figures by name, without those that cannot be read."""
        before, self._cpu_times = self._cpu_times, read_cpu_times(_text_of("/proc/stat"))
        memory, disk = _used_memory(), _free_disk(self._folder)
        figures = {
            "cpu_percent": cpu_percent(before, self._cpu_times),
            "memory_gb": None if memory is None else round(memory / GB, 2),
            "disk_free_gb": None if disk is None else round(disk / GB, 1),
        }
        return {name: value for name, value in figures.items() if value is not None}


def read_cpu_times(text: str) -> Optional[CpuTimes]:
    """Return the times of all CPUs from the text of /proc/stat. A guest's time is part of `user` and `nice`."""
    words = text.partition("\n")[0].split()
    if len(words) < 5 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]):
        return None
    ticks = [int(word) for word in words[1:9]]
    idle = sum(ticks[3:5])  # idle, and idle while waiting for a disk
    return CpuTimes(sum(ticks) - idle, sum(ticks))


def cpu_percent(before: Optional[CpuTimes], after: Optional[CpuTimes]) -> Optional[float]:
    """Return the use of all CPUs between two readings, from 0 to 100; None if too little time has passed.

    The kernel's count of idle time may go back a little.
    """
    if before is None or after is None or after.total <= before.total:
        return None
    share = (after.busy - before.busy) / (after.total - before.total)
    return round(100.0 * min(1.0, max(0.0, share)), 1)


def read_meminfo(text: str) -> Optional[int]:
    """Return the bytes in use, i.e. not available to programs, from the text of /proc/meminfo."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    sizes = {name: value.split()[:1] for name, value in pairs}
    total, available = (_whole(sizes.get(name, [])) for name in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return None
    return 1024 * max(0, total - available)


def read_cgroup(usage: str, stat: str) -> Optional[int]:
    """Return the bytes in use of a control group, without the file cache that can be dropped at once."""
    pairs = [line.split() for line in stat.splitlines()]
    counts = {pair[0]: pair[1:] for pair in pairs if len(pair) == 2}
    used = _whole([usage])
    dropped = _whole(counts.get("total_inactive_file", counts.get("inactive_file", [])))
    return None if used is None else max(0, used - (dropped or 0))


def _whole(words: list[str]) -> Optional[int]:
    return int(words[0]) if words and words[0].isdigit() else None


def _used_memory() -> Optional[int]:
    if process.is_in_container():
        files = memory_files("memory.current", "memory.usage_in_bytes")
        stats = memory_files("memory.stat", "memory.stat")
        found = (read_cgroup(_text_of(file), _text_of(stat)) for file, stat in zip(files, stats))  # noqa: B905 # Python 3.8 has no `strict`
        used = next((size for size in found if size is not None), None)
        if used is not None:
            return used
    return read_meminfo(_text_of("/proc/meminfo"))


def _free_disk(folder: str) -> Optional[int]:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _text_of(path: str) -> str:
    try:
        return read_text(path) or ""
    except OSError:
        return ""
