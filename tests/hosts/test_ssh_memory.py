"""What a process that stands by remembers of ssh's configuration: it counts as long as ssh would say the same, and no longer."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from testbed.client import missing

from launcher.errors import UnreachableError
from launcher.hosts import ssh_files, ssh_lookup
from launcher.hosts.ssh_config import hops
from launcher.hosts.ssh_lookup import SYSTEM_SSH, Question

QUESTION = Question("box", None, None, ())


class Box(NamedTuple):
    """A host's table that has an address alone."""

    address: str = "box"
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    known_hosts: str | None = None


@pytest.fixture
def ssh_folder(tmp_path, monkeypatch):
    """The folder of a user's configuration, in which `box` is 192.0.2.1."""
    if not Path(SYSTEM_SSH).exists():
        missing("the system's own ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(ssh_lookup, "_answers", {})
    folder = tmp_path / ".ssh"
    folder.mkdir()
    write(folder)
    return folder


@pytest.fixture
def asked(monkeypatch):
    """How often ssh was asked."""
    calls = []
    real = subprocess.run

    def run(words, **options):
        calls.append(words)
        return real(words, **options)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def write(folder, more="", address="192.0.2.1"):
    """Write the user's configuration."""
    (folder / "config").write_text(f"{more}\nHost box\n  HostName {address}\n")


def address():
    """Where `box` is."""
    return hops(Box())[-1].address


def test_what_is_remembered_is_not_asked_again(ssh_folder, asked):
    """Once, for two lookups."""
    ssh_lookup.remember([QUESTION])
    assert (address(), address(), len(asked)) == ("192.0.2.1", "192.0.2.1", 1)


def test_a_user_without_a_configuration_is_remembered_until_there_is_one(ssh_folder, asked):
    """As most are."""
    (ssh_folder / "config").unlink()
    ssh_lookup.remember([QUESTION])
    assert (address(), len(asked)) == ("box", 1)
    write(ssh_folder)
    assert (address(), len(asked)) == ("192.0.2.1", 2)


def test_another_user_is_another_question(ssh_folder, asked):
    """With the user's own lines."""
    write(ssh_folder, "Match user eve\n  Port 2222\n")
    ssh_lookup.remember([QUESTION])
    assert hops(Box(user="eve"))[-1].port == 2222
    assert len(asked) == 2


def test_another_address_of_the_same_length_is_seen(ssh_folder):
    """At once, by what the file holds: its time and its size may be the same."""
    ssh_lookup.remember([QUESTION])
    before = os.stat(ssh_folder / "config")
    write(ssh_folder, address="192.0.2.2")
    os.utime(ssh_folder / "config", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert address() == "192.0.2.2"


def test_a_file_that_is_included_by_now_is_seen(ssh_folder):
    """By a pattern, in a file that is included itself."""
    (ssh_folder / "more").mkdir()
    write(ssh_folder, f"Include {ssh_folder}/more/outer\n")
    (ssh_folder / "more" / "outer").write_text(f"Include {ssh_folder}/more/inner-*\n")
    ssh_lookup.remember([QUESTION])
    assert [*ssh_lookup._answers] == [QUESTION]
    assert address() == "192.0.2.1"
    (ssh_folder / "more" / "inner-1").write_text("Host box\n  HostName 192.0.2.3\n")
    assert address() == "192.0.2.3"


def test_other_rights_of_a_file_are_seen(ssh_folder, asked):
    """Ssh refuses a configuration that others may write."""
    ssh_lookup.remember([QUESTION])
    (ssh_folder / "config").chmod(0o666)
    address()
    assert len(asked) == 2


def test_another_ssh_is_asked_itself(ssh_folder, tmp_path, monkeypatch):
    """The first in PATH, which may read other files."""
    ssh_lookup.remember([QUESTION])
    other = tmp_path / "bin" / "ssh"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nprintf 'hostname 192.0.2.4\\nport 22\\nuser eve\\n'\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin:/bin")
    assert address() == "192.0.2.4"


@pytest.mark.parametrize(
    "line",
    [
        "Match exec true",
        "Match !exec false",
        "Match host box localnetwork 192.0.2.0/24",
        "CanonicalizeHostname yes",
        "IdentityAgent ${AGENT_OF_BOX}",
        'Include "with a space"',
        '"Include" plain',
        "Include a=b",
        r"Include a\ b",
        "Include d/[[:alpha:]]*",
        "Include\rplain",
        "Include d/\u00a0x",
        'Match ex"ec" true',
        'Match host "box"exec true',
        "Match\rexec true",
    ],
)
def test_what_may_change_by_itself_is_not_remembered(ssh_folder, asked, line):
    """A program, the network, DNS, a variable, and what we may read in another way than ssh."""
    write(ssh_folder, line)
    ssh_lookup.remember([QUESTION])
    assert ssh_lookup._answers == {}


def test_another_name_of_the_machine_is_seen(ssh_folder, asked, monkeypatch):
    """Ssh has filled it in for %l and %L."""
    write(ssh_folder, "Host box\n  UserKnownHostsFile ~/.ssh/known_%L\n")
    ssh_lookup.remember([QUESTION])
    assert [*ssh_lookup._answers] == [QUESTION]
    monkeypatch.setattr(ssh_lookup.socket, "gethostname", lambda: "elsewhere")
    address()
    assert len(asked) == 2


def test_a_file_that_cannot_be_read_is_asked_about(ssh_folder, asked):
    """As ssh refuses all of the configuration then."""
    write(ssh_folder, f"Include {ssh_folder}/d/*\n")
    (ssh_folder / "d").mkdir()
    ssh_lookup.remember([QUESTION])
    assert [*ssh_lookup._answers] == [QUESTION]
    (ssh_folder / "d" / "loop").symlink_to("loop")
    with contextlib.suppress(ssh_lookup.BadFileError):
        address()
    assert len(asked) == 2


def test_nothing_is_remembered_if_ssh_has_read_other_files_than_we(ssh_folder, monkeypatch):
    """Its own word counts: a system may have a configuration where we do not look."""
    monkeypatch.setattr(ssh_files, "SYSTEM_CONFIG", str(ssh_folder / "elsewhere"))
    ssh_lookup.remember([QUESTION])
    assert ssh_lookup._answers == {}


def test_a_mistake_is_not_remembered(ssh_folder):
    """The next lookup says it as ever."""
    write(ssh_folder, "NoSuchKeyword yes\n")
    ssh_lookup.remember([QUESTION])
    with pytest.raises(ssh_lookup.BadFileError, match="nosuchkeyword"):
        address()


def test_an_ssh_that_is_slow_is_not_a_mistake_of_its_user(ssh_folder, monkeypatch):
    """A machine under load, or a `Match exec` that hangs: exit code 4, and who follows a run tries again."""
    monkeypatch.setattr(ssh_lookup, "READ_S", 0.2)
    write(ssh_folder, 'Match exec "sleep 3"')
    with pytest.raises(
        UnreachableError, match=r"box: ssh -G takes longer than 0.2 s: .*\n  look it up   ssh -G box"
    ):
        hops(Box())
    assert UnreachableError.exit_code == 4
