"""Fixtures for tests of which each launches on this machine: a root that has the agent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from testbed.client import Client, until_left


@pytest.fixture(scope="session")
def used_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the agent below a root, as a launch leaves it: with its code compiled."""
    person = Client(tmp_path_factory.mktemp("used-agent"))
    run = person.detached("--", "true")
    until_left(person.home / ".launch" / "runs" / run)
    return person.home / ".launch" / "agent"


@pytest.fixture
def client(client: Client, used_agent: Path) -> Client:
    """A client that has launched on this machine before: to send the agent and to compile it is a third of a launch's CPU time."""

    def put(here: str, there: str) -> None:
        # What was compiled counts for the file of this very inode.
        (os.link if os.path.basename(here) == "agent.pyz" else shutil.copy2)(here, there)

    root = client.home / ".launch"
    root.mkdir(mode=0o700)
    shutil.copytree(used_agent, root / "agent", copy_function=put)
    return client
