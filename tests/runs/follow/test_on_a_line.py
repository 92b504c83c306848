"""Many runs launched and followed by threads of one client, over one connection to their host."""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from testbed import follow_all, many_runs
from testbed.client import REPOSITORY, processes_of, until

from launcher.base.delayed_interrupts import HeldInterrupts, NoInterrupts
from launcher.copy.local_copy import LocalCopy
from launcher.runs import run_client
from launcher.runs.move import pending_stops
from launcher.runs.pull.checkpoint_pulling import CheckpointKeeper
from launcher.transport.connecting import open_shared_connection
from launcher.values.host import Host

COUNT, SECONDS = 6, 4
MAX_AGENTS = 5


class Threads:
    """A client with its runs in threads, in the middle of which it says which they are."""

    def __init__(self, client, program, *words):
        env = {**client.env, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            [sys.executable, program.__file__, *words],
            cwd=client.project,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self):
        """Return the next thing that it says."""
        text = self.process.stdout.readline()
        if not text:
            pytest.fail(self.process.stderr.read())
        return json.loads(text)

    def end(self, timeout=120):
        """Wait for its end, without an error."""
        assert self.process.wait(timeout) == 0, self.process.stderr.read()

    def close(self):
        """End it, if it has not ended by itself."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@contextlib.contextmanager
def watching(look):
    """Collect what a look gives, again and again."""
    seen, is_over = [], threading.Event()

    def watch():
        while not is_over.is_set():
            seen.append(look())
            is_over.wait(0.2)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def agents(root):
    """How many agents serve a root on this machine. A child of one has its command line until it executes its own."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words[-3:-1] == [b"serve", str(root).encode()]:
                parents[entry.name] = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    return sum(parent not in parents for parent in parents.values())


@pytest.fixture
def talking(client):
    """Launch and follow runs that talk, on a host of the client's project; see many_runs.py."""
    with contextlib.ExitStack() as stack:

        def start(host):
            client.script(many_runs.TALKS)
            return stack.enter_context(
                contextlib.closing(Threads(client, many_runs, host, str(COUNT), str(SECONDS)))
            )

        yield start


def check_mirrors(client, root, runs):
    """Each mirror has what its host has, byte for byte."""
    for run in runs:
        for there in (root / "runs" / run / "record").glob("[0-9]*/*"):
            if there.name in ("log.txt", "events.jsonl", "state.json", "attempt.json"):
                here = client.runs / run / there.parent.name / there.name
                assert here.read_bytes() == there.read_bytes(), here


@pytest.mark.long
@pytest.mark.testbed
@pytest.mark.slow(reason="several runs, for a while")
def test_runs_are_launched_and_followed_over_one_connection(client, lab, talking):
    """By the kernel's count at any moment; all end, and all that they wrote is here."""
    with watching(lab.streams) as streams, watching(lambda: agents(lab.root)) as serving:
        threads = talking("A")
        runs = threads.line()["following"]
        found = threads.line()
        threads.end()
    assert max(streams) == 1
    assert max(serving) <= MAX_AGENTS
    assert found["states"] == ["succeeded"] * COUNT
    assert found["losses"] == 0
    assert len(found["lines"]) >= COUNT * 10 * (SECONDS - 1)
    assert len(found["metrics"]) >= COUNT * (SECONDS - 2)
    check_mirrors(client, lab.root, runs)


@pytest.mark.long
@pytest.mark.testbed
@pytest.mark.slow(reason="several runs, for a while")
def test_a_connection_that_is_cut_is_made_once_for_all(client, lab, talking):
    """Each follower loses its link and goes on; there is never more than one connection, and nothing is missing."""
    threads = talking("A")
    runs = threads.line()["following"]
    (before,) = lab.connections()
    with watching(lab.streams) as streams:
        lab.cut()
        until(lambda: lab.connections() and lab.connections() != {before}, "a new connection")
        found = threads.line()
        threads.end()
    assert max(streams) == 1
    assert found["states"] == ["succeeded"] * COUNT
    assert found["losses"] >= COUNT
    check_mirrors(client, lab.root, runs)


@pytest.mark.long
@pytest.mark.slow(reason="several runs, for a while")
def test_runs_of_this_machine_have_few_agents_too(client, talking):
    """However many there are."""
    root = client.home / ".launch"
    with watching(lambda: agents(root)) as serving:
        threads = talking("local")
        runs = threads.line()["following"]
        found = threads.line()
        threads.end()
    assert max(serving) <= MAX_AGENTS
    assert found["states"] == ["succeeded"] * COUNT
    check_mirrors(client, root, runs)
    until(lambda: not agents(root), "the end of the agents")
    assert not [run for run in runs if processes_of(root / "runs" / run)]


@pytest.mark.long
@pytest.mark.testbed
@pytest.mark.slow(reason="it starts clients and sessions")
def test_runs_at_kaggle_are_followed_over_one_line(kaggle_account):
    """Through their sessions, by the agents of one spool; each session is pushed once, and all files come home."""
    account = kaggle_account
    account.host(session_hours=0.004)
    account.pause_at(5)
    runs = [account.detached() for _ in range(2)]
    spool = account.client.home / ".local" / "share" / "launch" / "spool" / account.place
    with (
        watching(lambda: agents(spool)) as serving,
        contextlib.closing(Threads(account.client, follow_all, "k", *runs)) as threads,
    ):
        assert threads.line() == dict.fromkeys(runs, "succeeded")
        threads.end()
    assert 0 < max(serving) <= MAX_AGENTS
    pushed = account.pushes()
    assert len(pushed) == len({*pushed}) == 4
    for run in runs:
        assert (account.client.runs / run / "artifacts" / "model").is_file()


def test_a_host_that_is_not_the_lines_is_connected_to(tmp_path):
    """A desk of the line for its own host, and one of its own for another of the same name."""
    host = Host(name="local", root=str(tmp_path / "one"))
    with open_shared_connection(host) as line:
        opening = run_client.over_shared_connection(line)
        with opening(host) as desk, opening(host.model_copy(update={"root": str(tmp_path / "two")})) as other:
            assert "" != desk.root_id != other.root_id != ""
        with opening(host) as again:
            assert again.root_id == desk.root_id


def test_a_desk_of_a_line_hears_which_runs_were_abandoned(tmp_path, monkeypatch):
    """As one with a connection of its own does; what goes wrong there closes the desk."""
    host = Host(name="local", root=str(tmp_path / "root"))
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path / "mirrors"))
    monkeypatch.setattr(run_client.move_records, "pending", lambda: ["261125-gone-aaaaaa"])
    told = []
    monkeypatch.setattr(pending_stops, "deliver", lambda desk, pending: told.append((desk.root_id, pending)))
    with (
        open_shared_connection(host) as line,
        run_client.connect(host, run_client.over_shared_connection(line)) as desk,
    ):
        assert told == [(desk.root_id, ["261125-gone-aaaaaa"])]


def test_a_checkpoint_comes_over_the_line_too(tmp_path):
    """The keeper of checkpoints opens its desk by the follower's way."""
    host, asked = Host(name="local", root=str(tmp_path / "root")), []

    def opening(which):
        asked.append(which)
        return line.client()

    with open_shared_connection(host) as line:
        keeper = CheckpointKeeper(host, LocalCopy("261125-none-aaaaaa", tmp_path / "mirrors"), opening)
        keeper.wake()
        keeper.finish(Notes())
    assert asked == [host]


class Notes:
    """A view that is told why no checkpoint came."""

    def note(self, text):
        """Take it."""
        assert "was not downloaded" in text


def test_interrupts_are_held_back_by_the_main_thread_alone():
    """A thread that starts runs holds none, and could not."""
    found = []

    def work():
        assert NoInterrupts().release() is None
        try:
            HeldInterrupts()
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1
    assert HeldInterrupts().release() is None
