"""A client of a host with hundreds of runs: it asks for what it shows, and finds a run without reading the others."""

import json
from pathlib import Path

import pytest
from testbed.ended_run import EndedRun
from testbed.history import repeat

from launcher.errors import UnknownNameError, UsageError
from launcher.hosts import agent_desk
from launcher.runs import control
from launcher.runs.mirror import Mirror, latest, mirrors, run_ids
from launcher.values.host import Host

FIRST = "261122-train-k3f9w2"


@pytest.fixture
def there(tmp_path, monkeypatch):
    """The real agent of a root with 60 runs on this machine; the ids, newest first, and what it is asked for."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path / "runs-here"))
    root = tmp_path / "root"
    EndedRun(root, FIRST)
    ids = [FIRST, *repeat(root / "runs" / FIRST, 60, interrupted_every=20)]
    monkeypatch.setattr(
        control.Lookup, "host", lambda _self, _name: Host(name="box", address=None, root=str(root))
    )
    received = []
    real = agent_desk._summary
    monkeypatch.setattr(agent_desk, "_summary", lambda line: received.append(line) or real(line))
    return ids, received


def test_a_run_is_found_by_its_name_without_a_list_of_all(there):
    """By the start of its last part, by its whole id; one that is not there, and one that is not clear, are said so."""
    ids, received = there
    short = ids[7].rpartition("-")[2]
    assert control.locate(short, "box")[1].run == ids[7]
    assert control.locate(ids[8], "box")[1].run == ids[8]
    assert len(received) == 2
    with pytest.raises(UnknownNameError, match="box: no run 'nothing'"):
        control.locate("nothing", "box")
    with pytest.raises(UsageError, match="matches 61 runs"):
        control.locate("2611", "box")


def test_last_is_the_newest_there_or_the_last_of_this_client(there, tmp_path):
    """The host names its newest; a run that this client launched comes first, however old it is."""
    ids, received = there
    assert control.locate("last", "box")[1].run == FIRST
    assert len(received) == control.NEWEST
    for number, run in enumerate([ids[30], ids[40], "261122-gone-aaaaaa"], 1):
        client = {"launched": 1.0, "order": number, "host": Host(name="box").model_dump()}
        folder = tmp_path / "runs-here" / run
        folder.mkdir(exist_ok=True)
        (folder / "client.json").write_text(json.dumps(client))
    assert control.locate("last", "box")[1].run == ids[40]
    assert len(received) == control.NEWEST + 2


def test_a_listing_is_chosen_on_the_host(there):
    """The newest, those in a state; the newest is first, as without a host."""
    ids, received = there
    rows = control.listing("box", most=5)
    assert [row.summary.run for row in rows] == ids[:5]
    assert len(received) == 5
    assert len(control.listing("box", ["interrupted"])) == 3
    assert len(received) == 8
    assert [row.summary.run for row in control.listing("box")] == ids


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """What this client has of 60 runs that it launched, the oldest first."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    ids = [f"261122-train-{number:06}" for number in range(60)]
    for number, run in enumerate(ids, 1):
        Mirror(run, tmp_path).bind_seen(Host(name="box"), "", 1.0)
        path = tmp_path / run / "client.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "order": number}))
    (tmp_path / ".launches").write_text("60\n")
    (tmp_path / "261122-odd-aaaaaa").mkdir()
    return ids


def test_the_last_launch_of_this_client_is_known_without_a_look_at_all(launched, tmp_path, monkeypatch):
    """Where it was removed from here, the one before it is the last."""
    read = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or real(path))
    assert latest().run == launched[-1]
    assert len(read) < 5
    assert run_ids() == launched
    (tmp_path / launched[-1] / "client.json").unlink()
    assert latest().run == launched[-2] == mirrors()[-1].run
    (tmp_path / ".launches").unlink()
    assert latest().run == launched[-2]


def test_ps_shows_what_is_asked_for(client):
    """By the command: the newest, one state, all."""
    root = client.home / ".launch"
    EndedRun(root, FIRST)
    ids = repeat(root / "runs" / FIRST, 40, interrupted_every=10)
    rows = client.ok("ps", "--host", "local", "--limit", "3").splitlines()
    assert [row.split()[0] for row in rows[1:]] == [run.rpartition("-")[2] for run in (FIRST, ids[0], ids[1])]
    assert client.ok("ps", "--host", "local", "--state", "interrupted").count("interrupted") == 4
    assert len(client.ok("ps", "--host", "local").splitlines()) == 42
    assert "no such runs" in client.ok("ps", "--host", "local", "--state", "waiting")
