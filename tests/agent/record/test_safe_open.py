"""Whatever a job puts in the place of a file of its run, no other file is read or written, and nothing waits."""

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from testbed.toy import recorded_run

from launcher.agent.record import secret
from launcher.agent.record.appender import Appender
from launcher.agent.record.files import read_json, read_text, write_durably, write_over
from launcher.agent.record.locks import Lock, is_locked
from launcher.agent.record.safe_open import RunPath, UnreadableError, open_regular, read_tail
from launcher.agent.serving import cursors

RUN = "261122-train-k3f9w2"
KEY = "ssh-ed25519 the user's own key\n"


@pytest.fixture
def key(tmp_path):
    """A file of the user that no run may reach."""
    path = tmp_path / "ssh" / "authorized_keys"
    path.parent.mkdir()
    path.write_text(KEY)
    return path


@pytest.fixture
def run(tmp_path):
    """A run that has ended, with one numbered folder."""
    return recorded_run(tmp_path / "root", RUN, "succeeded")


def link(path, key):
    os.symlink(key, path)


def hard_link(path, key):
    os.link(key, path)


def folder(path, _key):
    os.mkdir(path)


def pipe(path, _key):
    os.mkfifo(path)


def listener(path, _key):
    here = os.getcwd()
    os.chdir(os.path.dirname(path))  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.basename(path))
    os.chdir(here)


def sparse(path, _key):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def put(path, kind, key):
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)
    kind(path, key)


def writes(run, name):
    """All the ways in which the agent writes a file of a run."""
    first = run.folder(1)
    return {
        "wish": lambda: write_durably(run.wish, "stop"),
        "state": lambda: first.write_state("failed"),
        "heartbeat": lambda: write_over(first.heartbeat, "{}"),
        "events": lambda: Appender(first.events).append(b"{}\n"),
        "lock": lambda: Lock.take(first.lock, 0.0),
        "secrets": lambda: secret.write(run, b'{"A": "value"}'),
        "erasure": lambda: secret.erase(run),
    }[name]


PLACES = {
    "wish": "control/wish",
    "state": "record/0001/state.json",
    "heartbeat": "record/0001/heartbeat",
    "events": "record/0001/events.jsonl",
    "lock": "record/0001/lock",
    "secrets": "record/secrets.env",
    "erasure": "record/secrets.env",
}


@pytest.mark.parametrize("kind", [link, hard_link, folder, pipe, listener])
@pytest.mark.parametrize("name", PLACES)
def test_what_stands_in_the_place_of_a_file_is_replaced_or_refused(run, key, name, kind):
    """Never written through; a pipe is never waited for."""
    put(os.path.join(run.path, PLACES[name]), kind, key)
    with contextlib.suppress(OSError):
        writes(run, name)()
    assert key.read_text() == KEY


@pytest.mark.parametrize("name", PLACES)
def test_a_folder_of_a_run_that_is_a_link_leads_nowhere(run, key, name):
    """The folders between the run and the file are looked at too."""
    path = Path(run.path, PLACES[name])
    key.rename(key.with_name(path.name))
    path.parent.rename(path.parent.with_name("away"))
    path.parent.symlink_to(key.parent)
    with pytest.raises(UnreadableError):
        writes(run, name)()
    assert key.with_name(path.name).read_text() == KEY
    assert [one.name for one in key.parent.iterdir()] == [path.name]


def test_the_name_of_a_new_file_cannot_be_known(run, key):
    """Links with the names that temporary files had until now: a stop overwrote what they led to."""
    for number in range(os.getpid(), os.getpid() + 3):
        os.symlink(key, f"{run.wish}.{number}.tmp")
    write_durably(run.wish, "stop")
    assert run.read_wish() == "stop"
    assert key.read_text() == KEY


@pytest.mark.parametrize("kind", [link, folder, pipe, listener, sparse])
def test_nothing_but_a_regular_file_of_a_bounded_size_is_read(run, key, kind):
    """Neither by us nor for a client that follows."""
    first = run.folder(1)
    for path in (first.state, first.attempt, first.events, first.heartbeat, run.wish, run.token, run.plan):
        put(path, kind, key)
    assert read_json(first.state) == {}
    assert read_text(run.token) is None
    assert run.read_wish() == "run"
    with pytest.raises(UnreadableError):
        open_regular(first.attempt if kind is not sparse else run.path, os.O_RDONLY)
    put(first.state, lambda path, _key: Path(path).write_text('{"state": "succeeded"}'), key)
    put(first.events, kind if kind is not sparse else link, key)
    answer, payload = cursors.read(run, {})
    assert [part["path"] for part in answer["parts"]] == ["0001/state.json"]
    assert KEY.encode() not in payload


def test_a_lock_that_is_no_file_is_not_held(run, key):
    """And says nothing of another file's lock."""
    lock = Lock.take(str(key))
    for kind in (link, pipe, folder):
        put(run.keeper_lock, kind, key)
        assert not is_locked(run.keeper_lock)
    lock.release()


def test_json_nested_too_deeply_is_not_json(run):
    """It is as if it were torn."""
    Path(run.folder(1).state).write_text('{"state":' * 100_000 + "1" + "}" * 100_000)
    assert read_json(run.folder(1).state) == {}
    Path(run.plan).write_text(json.dumps({"steps": 3}))
    assert read_json(run.plan) == {"steps": 3}


def test_the_end_of_a_file_is_read_from_a_place_on(tmp_path):
    """Nothing of a file that is not there, or that is a link below a run."""
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    assert read_tail(str(path), 4) == b"6789"
    assert read_tail(str(path), 100) == b"0123456789"
    assert read_tail(str(path), 100, start=7) == b"789"
    assert read_tail(str(path), 2, start=7) == b"89"
    assert read_tail(str(path), 4, start=20) == b""
    assert read_tail(str(tmp_path / "none"), 4) == b""
    (tmp_path / "link").symlink_to(path)
    assert read_tail(RunPath(str(tmp_path), str(tmp_path / "link")), 4) == b""
