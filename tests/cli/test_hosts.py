"""All hosts at a glance: those that answer have their rows, the others their reason, and none waits for another."""

import json
import socket

import pytest
from testbed.client import LAUNCH
from testbed.screen import Screen
from testbed.tables import mostly_long

from launcher.copy.local_copy import LocalCopy
from launcher.runs import host_probes
from launcher.values.host import Host

pytestmark = pytest.mark.slow(reason="each test starts clients that wait for hosts")


@pytest.fixture
def silent_port():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def dead(*names):
    return "".join(f'[hosts.{name}]\naddress = "127.0.0.1"\nport = 1\n' for name in names)


def test_fifty_hosts_are_probed_at_once(client, ssh_host):
    """This machine, an SSH host under several names, and dead ones: every row is there, in the file's order."""
    live = [f"live{number}" for number in range(4)]
    names = [f"dead{number}" for number in range(45)]
    client.script(dead(*names) + "".join(ssh_host.table(name) for name in live), "launch.toml")
    rows = json.loads(client.ok("hosts", "--json"))
    assert rows["version"] == 1
    assert [row["host"] for row in rows["hosts"]] == ["local", *names, *live]
    told = {row["host"]: row for row in rows["hosts"]}
    for name in ("local", *live):
        assert (told[name]["problem"], told[name]["profile"]) == (None, "cpu")
        assert told[name]["facts"]["free_gb"] > 0
    assert told["live0"]["facts"]["user"] == ssh_host.user
    assert {told[name]["problem"] for name in names} == {
        f"{name}: 127.0.0.1:1 refuses the connection; is sshd running?" for name in names
    }


def test_a_host_that_hangs_holds_up_nobody(silent_port, monkeypatch):
    """Where they take all places, each is given up in its own time, and the next one has its turn."""
    monkeypatch.setattr(host_probes, "MAX_HOSTS_AT_ONCE", 4)
    hanging = [Host(name=f"hang{number}", address="127.0.0.1", port=silent_port) for number in range(4)]
    rows = {
        row.host.name: row for row in host_probes.probe_all([*hanging, Host(name="mine")], deadline_s=10.0)
    }
    assert rows["mine"].facts.cpus
    assert [rows[host.name].problem for host in hanging] == [
        f"{host.name}: no answer within 10 s" for host in hanging
    ]


@pytest.mark.long
def test_many_agents_answer_at_once():
    """Each of them is a process of its own here."""
    rows = list(host_probes.probe_all([Host(name=f"mine{number}") for number in range(12)]))
    assert sorted(row.host.name for row in rows) == sorted(f"mine{number}" for number in range(12))
    assert all(row.facts and row.problem is None for row in rows)


def test_a_person_sees_a_table_and_who_is_waited_for(client, cards):
    """The table on standard output, the wait on standard error, exit code 0."""
    cards.put("t4")
    (cards.folder / "nvidia-smi").rename(cards.folder / "quick")
    (cards.folder / "nvidia-smi").write_text('#!/bin/sh\nsleep 3; exec "${0%/*}/quick" "$@"\n')
    (cards.folder / "nvidia-smi").chmod(0o755)
    client.script(dead("gone"), "launch.toml")
    done = client.run("hosts")
    assert done.returncode == 0
    assert done.stderr.startswith("waiting for ")
    assert "local" in done.stderr
    head, local, gone = done.stdout.splitlines()
    assert head.split() == ["HOST", "CARDS", "EACH", "DRIVER", "MEMORY", "FREE"]
    assert "1 x Tesla T4  15 GiB  580.65.06" in local
    assert "gone: 127.0.0.1:1 refuses the connection" in gone


def test_aliases_are_named_with_all_and_never_asked(client):
    """They may be anybody's."""
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text("Host far faraway *.pattern\n  Port 1\n")
    assert "far" not in client.ok("hosts")
    assert "aliases of ~/.ssh/config, not probed: far, faraway" in client.ok("hosts", "--all")
    assert json.loads(client.ok("hosts", "--all", "--json"))["aliases"] == ["far", "faraway"]


def test_aliases_that_a_run_is_on_are_probed(client):
    """They are in use, so that their row is wanted; `--all` names the others."""
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text("Host far faraway\n  Hostname 127.0.0.1\n  Port 1\n")
    LocalCopy("261122-sft-w8q2zz", client.runs).bind_seen(Host(name="far", address="far"), "", 1.0)
    LocalCopy("261122-sft-p0x1yy", client.runs).bind_seen(
        Host(name="forgotten", address="forgotten"), "", 1.0
    )
    told = json.loads(client.ok("hosts", "--all", "--json"))
    assert [row["host"] for row in told["hosts"]] == ["local", "far"]
    assert told["aliases"] == ["faraway"]
    assert "refuses the connection" in told["hosts"][1]["problem"]


def in_screen(client, columns):
    env = {key: value for key, value in client.env.items() if key not in ("COLUMNS", "NO_COLOR")}
    return Screen([*LAUNCH, "hosts"], {**env, "TERM": "xterm-256color"}, client.project, columns)


def test_rows_are_drawn_as_they_come(client, silent_port):
    """A host that hangs is named as one that is waited for, below the others; nothing of that stays."""
    hangs = f'[hosts.hangs]\naddress = "127.0.0.1"\nport = {silent_port}\n'
    client.script(hangs + dead("gone"), "launch.toml")
    with in_screen(client, 120) as screen:
        drawn = screen.until(lambda lines: len(lines) == 4 and lines[-1] == "waiting for hangs")
        assert [line.split()[0] for line in drawn] == ["HOST", "local", "gone", "waiting"]
        last = screen.to_the_end()
        assert [line.split()[0] for line in last] == ["HOST", "local", "hangs", "gone"]


@mostly_long("columns", [80, 120, 200], ci=(0,))
def test_the_table_of_hosts_fits_the_terminal(client, cards, columns):
    """Why a host did not answer goes on below itself, and loses no word."""
    cards.put("t4")
    client.script(dead("a-host-with-a-long-name-in-a-cloud"), "launch.toml")
    with in_screen(client, columns) as screen:
        lines = screen.to_the_end()
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(line.split()) for line in lines)
    assert "1 x Tesla T4 15 GiB" in words
    assert "is sshd running?" in words.replace("a-host-with-a-long-name-in-a-cloud ", "")
