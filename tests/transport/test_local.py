"""This machine as a host: its agent is a child of ours, and is gone when we hang up."""

import os
import signal
from pathlib import Path

import pytest

from launcher.errors import HostError
from launcher.transport.connecting import connect
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
    monkeypatch.setattr("launcher.transport.local.LEAVE_S", 0.2)
    pid = agent._channel._link._process.pid
    os.kill(pid, signal.SIGSTOP)
    agent.close()
    assert not Path(f"/proc/{pid}").exists()


def test_hanging_up_twice_is_no_error(agent):
    """As a `with` around a call that has closed it does."""
    agent.close()
    agent.close()


@pytest.mark.parametrize("mode", [None, 0o777, 0o750], ids=["new", "open", "group"])
def test_a_root_is_for_its_user_alone(tmp_path, mode):
    """Also under a careless umask, and where it was more open before."""
    root = tmp_path / "root"
    if mode is not None:
        root.mkdir()
        root.chmod(mode)
    umask = os.umask(0)
    try:
        connect(Host(name="local", root=str(root))).close()
    finally:
        os.umask(umask)
    made = [
        path for path in (root, *root.rglob("*")) if not path.is_symlink()
    ]  # a link has no mode of its own
    assert len(made) > 2
    assert [path.stat().st_mode & 0o077 for path in made] == [0] * len(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a folder away needs root")
def test_a_root_of_another_user_is_refused(tmp_path):
    """Nothing is made in it."""
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, 65534, 65534)
    with pytest.raises(HostError, match=r"belongs to another user \(uid 65534\)"):
        connect(Host(name="local", root=str(root)))
    assert list(root.iterdir()) == []
