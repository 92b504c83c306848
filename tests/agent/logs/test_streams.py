"""Workers beyond what the agent's descriptors allow: they wait, and what they say is taken when others have gone."""

import os
import resource
import selectors
import signal
import socket
import subprocess
import time

import pytest

from launcher.agent.attempt import streams
from launcher.agent.attempt.streams import Receiver, Streams, listening, most_connections
from launcher.agent.record.rundir import Run

WORKERS = 40


@pytest.fixture
def heard(monkeypatch, tmp_path):
    """The streams of an attempt, and a function that connects a worker, which says its number at once."""
    lines: list[bytes] = []
    nothing = os.pipe()
    receiver = Receiver(lines.extend, lambda _: None, lambda: None, lambda: None)
    with (
        selectors.DefaultSelector() as selector,
        listening(Run(str(tmp_path / "runs" / "261128-x-aaaaaa"))) as (listener, path),
        os.fdopen(nothing[0], "rb") as output,
    ):

        def make(most):
            monkeypatch.setattr(streams, "most_connections", lambda: most)
            return (
                Streams(selector, listener, output, receiver),
                lines,
                [worker(path, n) for n in range(WORKERS)],
            )

        yield make
    os.close(nothing[1])


def worker(path, number):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(b"%d\n" % number)
    return connection


def turn_until_quiet(made):
    while made.turn(0.01):
        pass


def in_order(number):
    return [b"%d" % one for one in range(number)]


def test_no_more_workers_are_accepted_than_the_bound(heard):
    """Each that goes makes room for one that waits; at the end all have been heard."""
    made, lines, workers = heard(10)
    turn_until_quiet(made)
    assert lines == in_order(10)
    for one in workers[:3]:
        one.close()
    turn_until_quiet(made)
    assert sorted(lines, key=int) == in_order(13)
    for one in workers[3:]:
        one.close()
    made.drain()
    assert sorted(lines, key=int) == in_order(WORKERS)


def test_an_agent_without_descriptors_waits_for_some(heard):
    """Others may have used them up, on the whole host too: it accepts again at its next heartbeat."""
    made, lines, workers = heard(WORKERS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 5, hard))
        turn_until_quiet(made)
        assert lines == in_order(5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    made._next_beat_s = 0.0
    turn_until_quiet(made)
    assert sorted(lines, key=int) == in_order(WORKERS)
    for one in workers:
        one.close()
    made.drain()


@pytest.mark.parametrize(
    ("soft", "most"), [(1024, 896), (256, 128), (64, 64), (1_000_000, 4096), (resource.RLIM_INFINITY, 4096)]
)
def test_the_bound_leaves_descriptors_for_the_agents_own_files(monkeypatch, soft, most):
    """By the soft limit; where that is tiny, half of the reserve."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert most_connections() == most


def test_a_child_that_ends_ends_a_wait(heard):
    """Nobody else says anything: without it the agent would notice half a second later, or would have to look up often."""
    made, _, workers = heard(WORKERS)
    for connection in workers:
        connection.close()
    turn_until_quiet(made)
    before = signal.getsignal(signal.SIGCHLD)
    with made.woken_by_signals(), subprocess.Popen(["sleep", "0.1"]) as child:
        began = time.monotonic()
        assert made.turn(60.0)
        assert time.monotonic() - began < 30
        child.wait()
    assert signal.getsignal(signal.SIGCHLD) == before
