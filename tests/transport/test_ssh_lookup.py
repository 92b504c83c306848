"""What ssh says of a name in its configuration."""

import shutil
from typing import NamedTuple

import pytest
from testbed.client import missing

from launcher.errors import UnreachableError
from launcher.transport.ssh import ssh_lookup
from launcher.transport.ssh.ssh_config import hops


class Box(NamedTuple):
    """A host's table that has an address alone."""

    address: str = "box"
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    known_hosts: str | None = None


def test_an_ssh_that_is_slow_is_not_a_mistake_of_its_user(tmp_path, monkeypatch):
    """A machine under load, or a `Match exec` that hangs: exit code 4, and who follows a run tries again."""
    if shutil.which("ssh") is None:
        missing("ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ssh_lookup, "READ_S", 0.2)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text('Match exec "sleep 3"\nHost box\n  HostName 192.0.2.1\n')
    with pytest.raises(
        UnreachableError, match=r"box: ssh -G takes longer than 0.2 s: .*\n  look it up   ssh -G box"
    ):
        hops(Box())
    assert UnreachableError.exit_code == 4


def test_the_path_of_a_held_connection_is_the_one_that_ssh_uses(tmp_path, monkeypatch):
    """Its tokens, its `%%` and the variables are ssh's to replace, once."""
    if shutil.which("ssh") is None:
        missing("ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host box\n  ControlPath /run/${HOME}/a%%r-%n\n")
    assert hops(Box())[-1].control_path == f"/run/{tmp_path}/a%r-box"


def test_a_time_limit_of_the_ssh_config_replaces_the_default(tmp_path, monkeypatch):
    """Without one it is ten seconds."""
    if shutil.which("ssh") is None:
        missing("ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host box\n  ConnectTimeout 45\n")
    assert hops(Box())[-1].connect_s == 45
    assert hops(Box(address="other"))[-1].connect_s == 10
