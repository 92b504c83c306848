"""Resource use of processes since they began: CPU time, and bytes of files, pipes, disks and TCP connections.

The kernel offers no count of the bytes that `send` and `recv` carry over UDP and Unix sockets.
"""

from __future__ import annotations

import os
from typing import FrozenSet, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import process
from .tcp_traffic import tcp_bytes

CORES = 0.01
"""The share of one core below which processes count as idle: threads that wake up now and then use that much."""
COUNTED = "files, pipes, disks or TCP connections"
"""The sources of the counted bytes, for messages."""
_IO = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
_CPU_TIMES = slice(
    11, 15
)  # of /proc/PID/stat behind the name: CPU times of the process and of its ended children


class Use(NamedTuple):
    """The resource use of a group of processes.

    `io_bytes` were read and written by calls, or moved from and to disks. `sockets` are the inodes of the
    open sockets, each with the bytes that it has carried if it is a TCP socket.
    """

    processes: FrozenSet[Tuple[int, str]]
    cpu_s: float
    io_bytes: int
    sockets: FrozenSet[Tuple[int, int]] = frozenset()

    def is_idle_since(self, before: Use, passed_s: float) -> bool:
        """Whether almost no CPU time and nothing else was used since a reading `passed_s` seconds ago."""
        is_same = (self.processes, self.io_bytes, self.sockets) == (
            before.processes,
            before.io_bytes,
            before.sockets,
        )
        return is_same and self.cpu_s - before.cpu_s < CORES * passed_s


def use_of(processes: Iterable[process.Process]) -> Optional[Use]:
    """Return the use of processes of this machine; None if the kernel does not report it."""
    found: Set[Tuple[int, str]] = set()
    ticks = io_bytes = 0
    inodes: Set[int] = set()
    for one in processes:
        try:
            ticks += sum(map(int, _stat_of("/proc/%d/stat" % one.pid)[_CPU_TIMES]))
            io_bytes += _io_bytes(one.pid)
            inodes.update(_sockets(one.pid))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, and is missing in this reading
        except OSError:
            return None
        found.add((one.pid, one.start))
    try:
        carried = tcp_bytes() if inodes else {}
    except OSError:
        return None
    sockets = frozenset((inode, carried.get(inode, 0)) for inode in inodes)
    return Use(frozenset(found), ticks / os.sysconf("SC_CLK_TCK"), io_bytes, sockets) if found else None


def is_asleep(pid: int) -> bool:
    """Whether no thread of a process runs at this moment."""
    folder = "/proc/%d/task" % pid
    try:
        return all(_stat_of("%s/%s/stat" % (folder, thread))[0] != b"R" for thread in os.listdir(folder))
    except OSError:
        return False


def _stat_of(path: str) -> List[bytes]:
    """Return the fields behind the name."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _io_bytes(pid: int) -> int:
    with open("/proc/%d/io" % pid, "rb") as file:
        pairs = (line.split(b":") for line in file.read().splitlines())
        return sum(int(value) for name, value in pairs if name in _IO)


def _sockets(pid: int) -> List[int]:
    folder = "/proc/%d/fd" % pid
    found = []
    for name in os.listdir(folder):
        try:
            target = os.readlink("%s/%s" % (folder, name))
        except FileNotFoundError:  # closed just now
            continue
        if target.startswith("socket:["):
            found.append(int(target[len("socket:[") : -1]))
    return found
