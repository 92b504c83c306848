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
