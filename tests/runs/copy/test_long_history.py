"""A client of a host with hundreds of runs: it asks for what it shows, and finds a run without reading the others."""

import json
import os
import time
from types import SimpleNamespace

import pytest
from testbed.ended_run import EndedRun
from testbed.entries import know
from testbed.history import repeat

from launcher.copy import index, index_folder
from launcher.copy.local_copy import LocalCopy, local_copies, run_ids
from launcher.errors import UnknownNameError, UsageError
from launcher.runs import locating
from launcher.runs.run_listing import listing
from launcher.transport.client import host_client
from launcher.values.host import LOCAL, Host

FIRST = "261122-train-k3f9w2"


@pytest.fixture
def there(tmp_path, monkeypatch):
    """The real agent of a root with 60 runs on this machine; the ids, newest first, and what it is asked for."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path / "runs-here"))
    root = tmp_path / "root"
    EndedRun(root, FIRST)
    ids = [FIRST, *repeat(root / "runs" / FIRST, 60, interrupted_every=20)]
    monkeypatch.setattr(
        locating.Lookup, "host", lambda _self, _name: Host(name="box", address=None, root=str(root))
    )
    received = []
    real = host_client._summary
    monkeypatch.setattr(host_client, "_summary", lambda line: received.append(line) or real(line))
    return ids, received


def test_a_run_is_found_by_its_name_without_a_list_of_all(there):
    """By the start of its last part, by its whole id; one that is not there, and one that is not clear, are said so."""
    ids, received = there
    short = ids[7].rpartition("-")[2]
    assert locating.locate(short, "box")[1].run == ids[7]
    assert locating.locate(ids[8], "box")[1].run == ids[8]
    assert len(received) == 2
    with pytest.raises(UnknownNameError, match="box: no run 'nothing'"):
        locating.locate("nothing", "box")
    with pytest.raises(UsageError, match="matches 61 runs"):
        locating.locate("2611", "box")


def test_last_is_the_newest_there_or_the_last_of_this_client(there, tmp_path):
    """The host names its newest; a run that this client launched comes first, however old it is."""
    ids, received = there
    assert locating.locate("last", "box")[1].run == FIRST
    assert len(received) == locating.NEWEST
    for number, run in enumerate([ids[30], ids[40], "261122-gone-aaaaaa"], 1):
        root = os.readlink(tmp_path / "root" / "root-id")
        know(run, tmp_path / "runs-here", order=number, host={"name": "box"}, root=root)
    assert locating.locate("last", "box")[1].run == ids[40]
    assert len(received) == locating.NEWEST + 2


def test_a_listing_is_chosen_on_the_host(there):
    """The newest, those in a state; the newest is first, as without a host."""
    ids, received = there
    rows = listing("box", most=5)
    assert [row.summary.run for row in rows] == ids[:5]
    assert len(received) == 5
    assert len(listing("box", ["interrupted"])) == 3
    assert len(received) == 8
    assert [row.summary.run for row in listing("box")] == ids


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """What this user has of more than MANY runs that were launched long ago and have ended, the oldest first."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ids = [f"261122-train-{number:06}" for number in range(locating.MANY + 1)]
    for number, run in enumerate(ids, 1):
        know(run, tmp_path, order=number)
        record = tmp_path / run / "0001"
        record.mkdir(parents=True)
        (record / "state.json").write_text(json.dumps({"state": "succeeded", "time": 2.0}))
        for folder in (index.place(run), tmp_path / run):
            os.utime(folder, (time.time() - 3600,) * 2)
    (index.folder() / ".launches").write_text(f"{len(ids)}\n")
    (tmp_path / "261122-odd-aaaaaa").mkdir()
    return ids


def test_the_last_launch_is_known_without_a_look_at_all(launched, tmp_path, monkeypatch):
    """Those that ended long ago are not read again. Where it was removed from here, the one before it is the last."""
    assert len(listing(None)) == len(launched)
    read = []
    real = index_folder.read
    monkeypatch.setattr(index, "read", lambda run: read.append(run) or real(run))
    assert locating.local_copy_here("last").run == launched[-1]
    assert len(read) < 5
    assert run_ids() == launched
    LocalCopy(launched[-1], tmp_path).remove()
    assert locating.local_copy_here("last").run == launched[-2] == local_copies()[-1].run


def test_a_launch_is_the_last_one_also_where_their_count_was_lost(launched, tmp_path):
    """It is counted again from the index."""
    (index.folder() / ".launches").unlink()
    plan = SimpleNamespace(to_file=lambda: b"{}\n")
    LocalCopy("261101-train-newest", tmp_path).bind(LOCAL, "a" * 32, plan)
    assert locating.local_copy_here("last").run == "261101-train-newest"
    assert index.find("261101-train-newest").order == len(launched) + 1


def test_ps_shows_what_is_asked_for(client):
    """By the command: the newest, one state, all."""
    root = client.home / ".launch"
    EndedRun(root, FIRST)
    ids = repeat(root / "runs" / FIRST, 40, interrupted_every=10)
    rows = client.ok("ps", "--host", "local", "--limit", "3").splitlines()
    assert [row.split()[0] for row in rows[1:4]] == [
        run.rpartition("-")[2] for run in (FIRST, ids[0], ids[1])
    ]
    assert client.ok("ps", "--host", "local", "--state", "interrupted").count("interrupted") == 4
    assert len(client.ok("ps", "--host", "local").splitlines()) == 42
    assert "no such runs" in client.ok("ps", "--host", "local", "--state", "waiting")
