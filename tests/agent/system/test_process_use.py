"""What processes have used, as the kernel counts it: the least use is seen, and none is invented."""

import os
import socket
import subprocess
import sys
import time

import pytest
from testbed.client import until

from launcher.agent.system import process
from launcher.agent.system.process_use import CORES, Use, is_asleep, use_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes use")


def own() -> Use:
    """What this process has used, with what it used for the reading itself: io alone."""
    found = use_of([process.find(os.getpid())])
    assert found is not None
    return found


def test_one_byte_over_a_connection_is_seen_on_both_ends():
    """`send` and `recv` are counted by the socket alone."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as out,
    ):
        into, _ = server.accept()
        with into:
            inodes = [os.fstat(end.fileno()).st_ino for end in (out, into)]

            def carried() -> list[int]:
                return [dict(own().sockets)[inode] for inode in inodes]

            out.send(b"x")
            assert into.recv(1) == b"x"
            until(lambda: min(carried()) >= 1, "the acknowledgement")
            before = carried()
            assert carried() == before
            out.send(b"x")
            assert into.recv(1) == b"x"
            until(lambda: carried() == [one + 1 for one in before], "the byte")


def test_a_child_that_has_ended_is_use_too():
    """Its time is its parent's, once that has waited for it."""
    before = own()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert own().cpu_s > before.cpu_s


WITHOUT_MAIN = (
    "import ctypes, threading\ndef work():\n    while True: pass\n"
    "threading.Thread(target=work).start()\nctypes.CDLL(None).pthread_exit(None)\n"
)


def test_a_process_of_which_only_the_first_thread_has_ended_is_seen_and_ended():
    """Its state is that of a zombie, and another thread works."""

    def below() -> list[process.Process]:
        return [one for one in process.own_descendants() if one.pid == works.pid]

    works = subprocess.Popen([sys.executable, "-c", WITHOUT_MAIN])
    try:
        until(lambda: process.find(works.pid).letter == "Z", "the end of the first thread")
        first = use_of(below())
        assert first is not None
        until(lambda: use_of(below()).cpu_s > first.cpu_s, "its work")
        process.end(below, "descendant", 0.0)
    finally:
        works.kill()
    assert below() == []


def test_a_process_that_sleeps_uses_nothing():
    """Between two readings, however close or far apart."""
    with subprocess.Popen(["sleep", "1000"]) as sleeps:
        try:
            found = process.find(sleeps.pid)
            while not is_asleep(sleeps.pid):
                time.sleep(0.01)
            first = use_of([found])
            second = use_of([found])
            assert first is not None
            assert second.is_idle_since(first, 15.0)
            assert not is_asleep(os.getpid())
        finally:
            sleeps.kill()


@pytest.mark.parametrize(
    ("changed", "is_idle"),
    [
        ({}, True),
        ({"cpu_s": 10 + 0.9 * CORES * 15}, True),
        ({"cpu_s": 10 + 1.1 * CORES * 15}, False),
        ({"io_bytes": 101}, False),
        ({"sockets": frozenset({(7, 1)})}, False),
        ({"processes": frozenset({(1, "a"), (2, "b")})}, False),
        ({"processes": frozenset({(1, "b")})}, False),
    ],
)
def test_idle_is_less_than_a_hundredth_of_a_core_and_nothing_else(changed, is_idle):
    """A byte, a connection, or another process with the same number is use."""
    before = Use(frozenset({(1, "a")}), 10.0, 100, frozenset({(7, 0)}))
    assert before._replace(**changed).is_idle_since(before, 15.0) is is_idle


def test_what_is_gone_or_hidden_is_not_taken_for_idle():
    """No process that can be read is no reading."""
    gone = process.Process(2**22 + 1, 1, "0", "S")
    assert use_of([gone]) is None
    assert use_of([]) is None
    assert not is_asleep(gone.pid)
