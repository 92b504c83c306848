"""A disk that is a file, and what a power cut leaves of it: a copy as it is at one moment."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from testbed.missing_part import MissingPartError

PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
SIZE = 1500 << 20  # the gate asks for 1 GB
_FICLONE = 0x40049409


class Disk:
    """A block device with a file system of its own. Its file lies on an XFS, which copies it in one step."""

    def __init__(self, folder: Path, kind: str) -> None:
        """Make and mount it at `at`; `kind` is ext4 or xfs. Raises MissingPartError."""
        for program in ("mkfs.xfs", f"mkfs.{kind}"):
            if shutil.which(program, path=PATH) is None:
                raise MissingPartError(f"no {program}: install xfsprogs and e2fsprogs")
        # A machine that another test has just booted may still have the disk mounted that is turned back.
        self._options = "loop,nouuid" if kind == "xfs" else "loop"
        self.at = folder / "at"
        self._outer = folder / "outer"
        for path in (self.at, self._outer):
            path.mkdir()
        with (folder / "outer.image").open("wb") as file:
            file.truncate(2 * SIZE)
        _run("mkfs.xfs", "-q", folder / "outer.image")
        _run("mount", "-o", "loop", folder / "outer.image", self._outer)
        with (self._outer / "now").open("wb") as file:
            file.truncate(SIZE)
        _run(f"mkfs.{kind}", "-q", self._outer / "now")
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", self._options, self._outer / "now", self.at)

    def copy(self) -> None:
        """Take a copy of what the device holds now. No write comes between its first and its last byte."""
        with (self._outer / "now").open("rb") as now, (self._outer / "then").open("wb") as then:
            fcntl.ioctl(then, _FICLONE, now.fileno())

    def turn_back(self) -> None:
        """Mount the copy in the place of the disk. Nobody may use the disk."""
        _run("umount", self.at)
        (self._outer / "then").rename(self._outer / "now")
        self._mount()

    def remove(self) -> None:
        """Unmount all."""
        for path in (self.at, self._outer):
            subprocess.run(["umount", "--lazy", path], capture_output=True, check=False, env={"PATH": PATH})


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": PATH})
    if done.returncode != 0:
        raise MissingPartError(f"{words[0]}: {done.stderr.strip()}")
