"""This machine as a host: its agent is a child of ours, and is gone when we hang up."""

import os
import signal
from pathlib import Path

import pytest

from launcher.hosts import connect
from launcher.values.host import Host


@pytest.fixture
def agent(tmp_path):
    """The real agent, on this machine."""
    return connect(Host(name="local", root=str(tmp_path / "root")))


def test_an_agent_is_gone_when_its_client_has_hung_up(agent):
    """No process stays, not even a zombie."""
    pid = agent._channel._link._process.pid
    agent.close()
    assert not Path(f"/proc/{pid}").exists()


def test_an_agent_that_is_stopped_is_ended(agent, monkeypatch):
    """It hears neither the end of its input nor SIGTERM; hanging up ends it nevertheless, and raises nothing."""
    monkeypatch.setattr("launcher.hosts.local.LEAVE_S", 0.2)
    pid = agent._channel._link._process.pid
    os.kill(pid, signal.SIGSTOP)
    agent.close()
    assert not Path(f"/proc/{pid}").exists()


def test_hanging_up_twice_is_no_error(agent):
    """As a `with` around a call that has closed it does."""
    agent.close()
    agent.close()
