"""A client's folder as it was once, for tests that each begin with it: a run that has ended is launched once for all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from testbed.client import Client, kill_all_of, processes_of, until


def copy_of(folder: Path, there: Path) -> None:
    """Copy a folder with all that lies in it. The agent's file stays the same one: what was compiled of it counts for its inode."""
    subprocess.run(["cp", "-a", folder, there], check=True)
    for path in folder.glob("**/agent.pyz"):
        copied = there / path.relative_to(folder)
        copied.unlink()
        os.link(path, copied)


class Kept:
    """A client's folder that is put back, at the same place, whatever a test has made of it."""

    def __init__(self, folder: Path) -> None:
        self.client = Client(folder / "user")
        self._kept = folder / "kept"

    def keep(self) -> None:
        """Keep all that is there now, once none of its processes is left."""
        until(lambda: not processes_of(self.client.home), "the end of its processes")
        copy_of(self.client.home.parent, self._kept)

    def put_back(self) -> Client:
        """Return a client with what was kept, and nothing else."""
        folder = self.client.home.parent
        kill_all_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
        copy_of(self._kept, folder)
        return Client(folder)
