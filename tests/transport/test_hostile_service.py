"""A service that drips, floods or answers nonsense: a call ends in time, in little memory, with a named failure."""

import contextlib
import itertools
import resource
import socket
import threading
import time
import zlib

import pytest

from launcher.transport.http import service_wire
from launcher.transport.http.service_wire import CallFailure, ServiceWire, WireError

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
FOUND = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Type: text/html\r\n\r\n"
LIMIT_S = 1.0


@pytest.fixture
def service(monkeypatch):
    """Return a function that gives a wire to a server, which sends the pieces that it is given, one each 50 ms."""
    monkeypatch.setattr(service_wire, "CALL_S", LIMIT_S)
    is_over = threading.Event()
    servers = []

    def serve(pieces):
        listening = socket.create_server(("127.0.0.1", 0))
        servers.append(listening)

        def answer():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                        if is_over.wait(0.05):
                            return

        threading.Thread(target=answer, daemon=True).start()
        return ServiceWire(f"http://127.0.0.1:{listening.getsockname()[1]}/api/v1")

    yield serve
    is_over.set()
    for one in servers:
        one.close()


@pytest.mark.parametrize(
    "pieces",
    [
        itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.cycle([b"X: y\r\n"])),
        itertools.cycle([b"HTTP/1.1 100 Continue\r\n\r\n"]),
        itertools.chain([FOUND], itertools.cycle([b" "])),
        itertools.chain([JSON, b"\r\n"], itertools.cycle([b" "])),
    ],
    ids=["header", "continue", "redirect", "body"],
)
def test_who_drips_does_not_hold_a_call(service, pieces):
    """Each byte comes in time, and there is no end of them."""
    began = time.monotonic()
    with pytest.raises(WireError) as caught:
        service(pieces).ask("POST", "instances", {}, "Bearer k")
    assert (caught.value.failure, caught.value.was_sent) == (CallFailure.SILENT, True)
    assert time.monotonic() - began < LIMIT_S + 3


def test_a_redirect_with_an_endless_body_takes_little_memory(service, monkeypatch):
    """It is not followed, and not read for ever either."""
    monkeypatch.setattr(service_wire, "CALL_S", 60.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wire = service([FOUND + b"x" * 400_000_000])
    with pytest.raises(WireError) as caught:
        wire.ask("GET", "instances")
    assert caught.value.failure is CallFailure.TOO_LARGE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


def test_what_unpacks_to_gigabytes_is_too_large(service, monkeypatch):
    """What counts is what it is once it is unpacked. A busy machine has time for that."""
    monkeypatch.setattr(service_wire, "CALL_S", 60.0)
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b"\0" * 10_000_000) for _ in range(40)) + packer.flush()
    head = JSON + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with pytest.raises(WireError) as caught:
        service([head + packed]).ask("GET", "instances")
    assert caught.value.failure is CallFailure.TOO_LARGE


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 100_000, b"1" * 10_000, b"\xff", b""], ids=len)
def test_json_that_cannot_be_read_is_none(service, body):
    """However deep it is, and whatever its numbers."""
    head = JSON + b"Content-Length: %d\r\n\r\n" % len(body)
    assert service([head + body]).ask("GET", "instances").json() is None


def test_a_redirect_to_no_address_is_an_answer(service):
    """Nobody goes there."""
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://[::bad\r\nContent-Length: 0\r\n\r\n"
    assert service([answer]).ask("GET", "instances").status == 302
