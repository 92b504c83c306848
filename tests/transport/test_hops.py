"""Hosts behind hosts, on machines of their own: ssh's configuration as ssh means it, every hop believed by itself."""

import json
import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from testbed.client import until

from launcher.transport.connecting import connect
from launcher.values.host import Host

pytestmark = pytest.mark.testbed


def block(machine, name, *more, known_hosts=None):
    """A block of ssh's configuration."""
    lines = [
        f"HostName {machine.address}",
        f"User {machine.user}",
        f"IdentityFile {machine.folder}/client_key",
        f"UserKnownHostsFile {known_hosts or machine.known_hosts}",
        *more,
    ]
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)


@pytest.fixture
def way(client, machines):
    """Write ~/.ssh/config: `outer`, `inner` behind it, and `far` behind both; return where `far`'s parts may be changed."""
    outer, inner = machines
    folder = client.home / ".ssh"
    (folder / "more.d").mkdir(parents=True)
    key = " ".join((outer.folder / "host_key.pub").read_text().split()[:2])
    (folder / "far_known").write_text(f"far {key}\n")

    def write(outer_known=None, inner_known=None, far_known=folder / "far_known"):
        (folder / "config").write_text(
            "Include more.d/*\nMatch originalhost inner\n  ProxyJump outer\n"
            + block(outer, "far", "HostKeyAlias far", "ProxyJump outer,inner", known_hosts=far_known)
        )
        (folder / "more.d" / "lab").write_text(
            block(outer, "outer", known_hosts=outer_known) + block(inner, "inner", known_hosts=inner_known)
        )

    write()
    return write


def came_from(machine):
    """Whence the last login on a machine came, by its own sshd."""
    return re.findall(r"Accepted publickey for \S+ from (\S+)", (machine.folder / "console.log").read_text())[
        -1
    ]


def fingerprint(machine):
    """The SHA-256 of a machine's key, as OpenSSH tells it."""
    said = subprocess.run(
        ["ssh-keygen", "-lf", machine.folder / "host_key.pub"], capture_output=True, check=True
    )
    return re.search(rb"SHA256:\S+", said.stdout)[0].decode()


def test_a_run_goes_through_a_hop_that_an_included_file_names(client, machines, way):
    """Include, Match and ProxyJump mean what they mean to ssh; the inner sshd sees the outer one."""
    outer, inner = machines
    assert "succeeded" in client.seen("--host", "inner", "--", "true")
    assert came_from(inner) == outer.address


def test_two_hops_and_a_host_key_alias(client, machines, way):
    """The last of three logins comes from the second; its key is known by its alias alone."""
    _, inner = machines
    out = client.seen("--host", "far", "--", "true")
    assert came_from(machines[0]) == inner.address
    assert "through outer, inner" in out


def test_a_misspelt_alias_is_still_told_with_the_nearest(client, way):
    """Names of included files are known; a word that is none is no host."""
    done = client.run("probe", "--host", "iner")
    assert done.returncode == 2
    assert "inner" in done.stderr


@pytest.mark.parametrize("which", ["outer", "inner", "far"])
@pytest.mark.parametrize("what", ["not known", "CHANGED"])
def test_each_hops_key_is_believed_by_its_own_file_alone(client, machines, way, which, what):
    """Exit code 4; which hop it is and the fingerprint it shows."""
    outer, inner = machines
    shows = {"outer": outer, "inner": inner, "far": outer}[which]
    other = {"outer": inner, "inner": outer, "far": inner}[which]
    key = " ".join((other.folder / "host_key.pub").read_text().split()[:2])
    known = client.home / "known"
    known.write_text(f"{'far' if which == 'far' else shows.address} {key}\n" if what == "CHANGED" else "")
    way(**{f"{which}_known": known})
    done = client.run("probe", "--host", "far", *(["--accept-new-host-key"] if what == "CHANGED" else []))
    assert done.returncode == 4, done.stdout + done.stderr
    assert what in done.stderr
    assert fingerprint(shows) in done.stderr
    assert done.stderr.startswith("far's" if which == "far" else f"far, hop {which}'s")
    assert "--accept-new-host-key" in done.stderr or "ssh-keygen -R" in done.stderr


def test_new_keys_are_noted_on_purpose_and_believed_from_then_on(client, machines, way):
    """Every hop's fingerprint is told; the folder is closed to others; ssh itself reads what was noted."""
    outer, inner = machines
    known = client.home / "new" / "known_hosts"
    way(known, known, known)
    assert client.run("probe", "--host", "far").returncode == 4
    assert not known.exists()
    done = client.run("probe", "--host", "far", "--accept-new-host-key", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["host"] == "far"
    assert fingerprint(outer) in done.stderr
    assert fingerprint(inner) in done.stderr
    assert (known.parent.stat().st_mode & 0o777, known.stat().st_mode & 0o777) == (0o700, 0o600)
    before = known.read_bytes()
    client.ok("probe", "--host", "far")
    assert known.read_bytes() == before
    for name in (inner.address, "far"):
        said = subprocess.run(["ssh-keygen", "-F", name, "-f", known], capture_output=True, check=False)
        assert said.returncode == 0, name


def test_a_revoked_key_is_not_accepted_on_purpose_either(client, machines, way):
    """The option is for unknown keys."""
    key = " ".join((machines[0].folder / "host_key.pub").read_text().split()[:2])
    known = client.home / "known"
    known.write_text(f"@revoked * {key}\n")
    way(outer_known=known)
    done = client.run("probe", "--host", "outer", "--accept-new-host-key")
    assert done.returncode == 4
    assert "REVOKED" in done.stderr


def test_a_frozen_sshd_behind_a_hop_is_told_and_named(client, machines, way):
    """It takes connections and says nothing: as the host, and as a hop. Both commands end by themselves."""
    inner = machines[1]
    daemon = inner.enter("pgrep", "-o", "-x", "sshd").strip()
    inner.enter("kill", "-STOP", daemon)
    try:
        asked = {name: client.start("probe", "--host", name) for name in ("inner", "far")}
        said = {name: process.communicate(timeout=180)[1] for name, process in asked.items()}
    finally:
        inner.enter("kill", "-CONT", daemon)
    assert {name: process.returncode for name, process in asked.items()} == {"inner": 4, "far": 4}
    assert said["inner"].startswith(f"inner: {inner.address}:22 does not answer within")
    assert said["far"].startswith(f"far, hop inner: {inner.address}:22 does not answer within")


def test_a_host_that_its_hop_does_not_reach_is_told(client, machines, way):
    """Nobody listens on that port: the hop is up, and says so."""
    (client.project / "launch.toml").write_text('[hosts.box]\naddress = "inner"\nport = 4\n')
    done = client.run("probe", "--host", "box")
    assert done.returncode == 4
    assert f"{machines[1].address}:4: the hop before it gets no connection" in done.stderr


@pytest.mark.long
def test_twelve_connections_at_once_to_an_sshd_with_its_usual_limits(client, machines, monkeypatch):
    """MaxStartups turns some away at random; each comes in all the same."""
    outer = machines[0]
    monkeypatch.setenv("HOME", str(client.home))
    host = Host(
        name="outer",
        address=outer.address,
        user=outer.user,
        identity_file=str(outer.folder / "client_key"),
        known_hosts=str(outer.known_hosts),
    )

    def ask(_number):
        with connect(host) as desk:
            return desk.probe().user

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == [outer.user] * 12


RESUMES = """\
import time, launcher_worker as w
w.resume_from()
for i in range(1, 61):
    time.sleep(0.1)
    w.log(i, loss=1 / i)
w.done(60)
"""


@pytest.mark.long
def test_a_host_that_loses_its_power_is_waited_for_and_its_run_goes_on(client, machines):
    """While it is down the client tries; when it is back the run is interrupted, and `attach` takes it up."""
    outer = machines[0]
    (client.project / "launch.toml").write_text(outer.table("A"))
    client.script(RESUMES)
    process = client.start("--host", "A", "--", "python", "train.py")
    until(
        lambda: any(b"metric" in path.read_bytes() for path in client.runs.glob("*/0002/events.jsonl")),
        "the first step",
    )
    outer.kill()
    outer.up()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 5, out + err
    assert "the run is not affected" in err
    assert "interrupted" in err
    out = client.seen("attach", "last")
    assert "was interrupted" in out
    assert "succeeded" in out


def test_a_client_stopped_in_the_middle_of_a_login_leaves_nothing_there(client, machines, way):
    """SIGKILL while connecting: no session of ours outlives it on any hop."""
    process = client.start("--host", "far", "--", "true")
    until(lambda: machines[0].sessions(), "the first login")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not machines[0].sessions() and not machines[1].sessions(), "the sessions to end")
