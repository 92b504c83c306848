"""The marker of a complete environment.

The marker is valid at once. After a crash of the host it is valid only if all files were on the disk. To
write gigabytes to a disk takes longer than to install them. So `seal` writes the marker with the id of this
boot. While the run starts, a separate process *settles* the environment: it flushes the file system, and
replaces the marker with one without the id. A marker with the id of another boot is invalid: it is unknown
which files reached the disk before the host stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys

from ..record import strict_json
from ..record.files import read_json, sync_file_system, write_durably, write_over
from ..record.locks import Lock
from ..record.packages_report import PackagesReport
from ..system import process

MARKER = "environment.json"
_BOOT = "boot"


def main(arguments: list[str]) -> int:
    """Settle an environment at the lowest priority, and return 0. This process inherits its lock."""
    os.nice(19)
    settle(os.path.abspath(arguments[0]))
    return 0


def is_sealed(path: str) -> bool:
    """Return whether an environment is complete: settled, or sealed since this host started."""
    marker = read_json(_marker_of(path))
    return bool(marker) and marker.get(_BOOT, process.boot_id()) == process.boot_id()


def is_settled(path: str) -> bool:
    """Return whether an environment is complete and on the disk."""
    marker = read_json(_marker_of(path))
    return bool(marker) and _BOOT not in marker


def seal(path: str, packages: PackagesReport) -> None:
    """Mark an environment as complete until this host stops. It may not be on the disk yet."""
    text = strict_json.encode({"version": 1, "packages": packages, _BOOT: process.boot_id()})
    write_over(_marker_of(path), text + "\n")  # not flushed: that would wait for the files of the environment


def start_settling(path: str, lock: Lock) -> None:
    """Settle an environment in a background process that holds its lock too."""
    subprocess.Popen(
        [sys.executable, "-I", sys.argv[0], "settle", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        pass_fds=(lock.fileno(),),
    )


def settle(path: str) -> None:
    """Write a sealed environment to the disk, then mark it as complete for good. Raises OSError."""
    if not is_sealed(path) or is_settled(path):
        return
    python = os.path.realpath(os.path.join(path, "bin", "python"))
    folders = {os.stat(folder).st_dev: folder for folder in (os.path.dirname(python), path)}
    for folder in folders.values():
        sync_file_system(folder)
    marker = read_json(_marker_of(path))
    del marker[_BOOT]
    write_durably(_marker_of(path), strict_json.encode(marker) + "\n")


def unseal(path: str) -> None:
    """Remove the marker of an environment, if it has one."""
    if os.path.exists(_marker_of(path)):
        os.unlink(_marker_of(path))


def _marker_of(path: str) -> str:
    return os.path.join(path, MARKER)
