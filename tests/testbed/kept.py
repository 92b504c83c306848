"""A client's folder as it was once, for tests that each begin with it: a run that has ended is launched once for all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from testbed.client import Client, kill_all_of, processes_of, until
from testbed.sshd import SshHost

CLEAR_ROOT = "find .launch -mindepth 1 -maxdepth 1 ! -name agent -exec rm -rf {} + 2>/dev/null || true"
"""For a shell in a host's home: what runs have left goes, and the agent stays, which takes longer to send and to compile than to run."""


def copy_of(folder: Path, there: Path) -> None:
    """Copy a folder with all that lies in it. The agent's file stays the same one: what was compiled of it counts for its inode."""
    subprocess.run(["cp", "-a", folder, there], check=True)
    for path in folder.glob("**/agent.pyz"):
        copied = there / path.relative_to(folder)
        copied.unlink()
        os.link(path, copied)


def give_agent(host: SshHost, root: Path) -> None:
    """Put the agent that a host's user has used below another root of the host."""
    if (used := host.folder / "used-agent").exists():
        copy_of(used, root / "agent")


def keep_agent(host: SshHost, root: Path) -> None:
    """Keep the agent that a host's user has used below a root."""
    if (root / "agent").exists() and not (used := host.folder / "used-agent").exists():
        copy_of(root / "agent", used)


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

    def give(self, client: Client) -> None:
        """Put it back, and let a client be the one that has it."""
        back = self.put_back()
        client.home, client.project = back.home, back.project
