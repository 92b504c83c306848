"""`launch forward`: a port beside a run, used from here by plain sockets. sshd and the engine are asked what there is."""

import concurrent.futures
import contextlib
import hashlib
import json
import re
import secrets
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow(reason="each test starts clients and a run")

SERVER = """
import hashlib, socket, sys, threading
def serve(one):
    with one:
        data = b""
        while piece := one.recv(1 << 16):
            data += piece
        one.sendall(hashlib.sha256(data).hexdigest().encode() + b"\\n" + data)  # after the end of what came
with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64) as there:
    print("listens", flush=True)
    while True:
        threading.Thread(target=serve, args=(there.accept()[0],)).start()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def ask(port, data):
    """Send all, end the sending, and return what comes until the end."""
    with socket.create_connection(("127.0.0.1", port), 60) as one:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        got = b""
        while piece := one.recv(1 << 16):
            got += piece
    return got


def answer_to(data):
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


@contextlib.contextmanager
def forwarded(client, *words):
    """`launch forward` until the block ends; its process and the port here."""
    with client.start("forward", *words) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1])
        finally:
            process.kill()


HERE, THERE = "local", pytest.param("A", marks=pytest.mark.testbed)
LONG_HERE = pytest.param("local", marks=pytest.mark.long)
LONG_THERE = pytest.param("A", marks=[pytest.mark.testbed, pytest.mark.long])


@pytest.fixture(params=[HERE, THERE])
def place(request, client):
    """A host with a run that has ended; what was started beside it is gone afterwards."""
    if request.param == "A":
        request.getfixturevalue("lab")
    client.script(SERVER, "server.py")
    client.detached("--host", request.param, "--", "true")
    return request.param


def test_a_server_is_started_reached_and_ended(client, place):
    """Every byte both ways, the end of each direction, many at once; with the command's output. Ctrl-C ends both."""
    there, here = free_port(), free_port()
    words = ("last", f"{here}:{there}", "--", "python", "server.py", str(there))
    with forwarded(client, *words) as (process, port):
        assert port == here
        assert process.stdout.readline() == "listens\n"
        for size in (0, 1, 3_000_000):
            data = secrets.token_bytes(size)
            assert ask(port, data) == answer_to(data)
        pieces = [secrets.token_bytes(50_000) for _ in range(24)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert list(pool.map(lambda data: ask(port, data), pieces)) == [
                answer_to(data) for data in pieces
            ]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in said
    for port in (here, there):
        with pytest.raises(ConnectionRefusedError):
            ask(port, b"")


@pytest.mark.parametrize("place", [LONG_HERE, THERE], indirect=True)
def test_nobody_listens_yet(client, place):
    """It says so, closes what comes, and carries it once somebody listens. Ctrl-C: exit code 0."""
    there, here = free_port(), free_port()
    with forwarded(client, "last", f"{here}:{there}") as (process, port):
        assert "no process listens" in process.stderr.readline()
        with contextlib.suppress(ConnectionResetError):
            assert ask(port, b"x") == b""
        with client.start("exec", "last", "--", "python", "server.py", str(there)) as server:
            assert server.stdout.readline() == "listens\n"
            assert ask(port, b"y") == answer_to(b"y")
            server.kill()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=180) == 0
    assert client.run("forward", "last", "0").returncode == 2
    assert client.run("forward", "last", "1:99999").returncode == 2
    with socket.create_server(("127.0.0.1", here)):
        done = client.run("forward", "last", f"{here}:{there}")
    assert (done.returncode, f"port {here} of this machine is taken" in done.stderr) == (2, True)


@pytest.mark.parametrize("place", [HERE, LONG_THERE], indirect=True)
def test_the_same_port_of_the_same_machine_is_not_carried_in_a_circle(client, place):
    """This machine, and a host that turns out to be it: nothing listens here, and the address is the server's own."""
    there = free_port()
    with client.start("forward", "last", str(there), "--", "python", "server.py", str(there)) as process:
        assert process.stdout.readline() == f"http://127.0.0.1:{there}\n"
        assert process.stdout.readline() == "listens\n", process.stderr.read()
        assert ask(there, b"once") == answer_to(b"once")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=180) == 130
    if place == "local":
        said = json.loads(client.ok("forward", "last", str(there), "--json"))
        assert {**said, "run": ""} == {
            "version": 1, "kind": "forward", "run": "", "address": "127.0.0.1", "port": there, "to": there,
        }  # fmt: skip


@pytest.mark.testbed
def test_all_is_carried_on_one_connection_which_is_made_again(client, lab):
    """sshd has one session however many connections are carried; a cut link is made again for the next one."""
    client.script(SERVER, "server.py")
    client.detached("--host", "A", "--", "true")
    there, here = free_port(), free_port()
    words = [sys.executable, client.project / "server.py", str(there)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as server,  # of this machine, as A is
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(server.kill)
        assert server.stdout.readline() == b"listens\n"
        before = lab.connections()
        with forwarded(client, "last", f"{here}:{there}") as (process, port):
            with contextlib.ExitStack() as held:
                for _ in range(10):
                    held.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert ask(port, b"z") == answer_to(b"z")
                assert len(lab.connections() - before) == 1
            lab.cut()
            assert ask(port, b"again") == answer_to(b"again")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=180) == 0
        with forwarded(client, "last", str(there)) as (process, port):
            assert port != there
            taken = f"port {there} of this machine is taken: port {port} is used   "
            assert process.stderr.readline().startswith(taken)
            assert ask(port, b"another") == answer_to(b"another")
