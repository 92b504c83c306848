"""A service that drips, floods or answers nonsense: a call ends in time, in little memory, with a named failure."""

import contextlib
import datetime as dt
import ipaddress
import itertools
import os
import resource
import socket
import ssl
import threading
import time
import zlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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


def test_a_file_that_drips_is_given_up(service, monkeypatch):
    """Each byte comes in time; the file would take for ever."""
    monkeypatch.setattr(service_wire, "SLOW_S", LIMIT_S)
    wire = service(itertools.chain([JSON, b"\r\n"], itertools.cycle([b" "])))
    with wire.get("/file") as download, pytest.raises(WireError, match="bytes arrive in 1 s") as caught:
        list(download.file())
    assert caught.value.failure is CallFailure.SILENT


def test_a_file_that_keeps_its_rate_is_whole_whatever_its_time(service, monkeypatch):
    monkeypatch.setattr(service_wire, "SLOW_S", 0.0)
    part = b"x" * service_wire.SLOW_BYTES
    wire = service([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (3 * len(part)), part * 3])
    monkeypatch.setattr(service_wire, "SLOW_BYTES", 1)
    with wire.get("/file") as download:
        assert sum(map(len, download.file())) == 3 * len(part)


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


def got(wire, link):
    with wire.get(link) as download:
        return download.status


@pytest.mark.parametrize("link", ["https://[::bad/x", "http://198.51.100.1/x", "file:///etc/passwd"])
@pytest.mark.parametrize(
    "follow",
    [
        lambda wire, link: wire.put(link, b"x"),
        got,
        lambda wire, _link: got(wire, "/redirect"),
    ],
    ids=["put", "get", "redirect"],
)
def test_a_link_that_is_not_safe_is_a_named_failure(service, follow, link):
    """A service gives it at once, or redirects to it. It is not followed."""
    wire = service([f"HTTP/1.1 302 Found\r\nLocation: {link}\r\nContent-Length: 0\r\n\r\n".encode()])
    with pytest.raises(WireError, match="its link") as caught:
        follow(wire, link)
    assert caught.value.failure is CallFailure.MALFORMED


ALERT = b"\x15\x03\x03\x00\x02\x02\x50"
"""A record of TLS that ends a connection: `internal_error`, not encrypted, as a balancer sends it that dies."""


@pytest.fixture
def tls_service(tmp_path):
    """Return a wire to a server with a certificate in `cert.pem`, and the requests that it has read; it answers each with ALERT."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "service")])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    listening, read = socket.create_server(("127.0.0.1", 0)), []

    def answer():
        with contextlib.suppress(OSError):  # a client that does not accept the certificate hangs up
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as secure:
                read.append(secure.recv(65536))
                os.write(secure.fileno(), ALERT)
                secure.recv(1)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield ServiceWire(f"https://127.0.0.1:{listening.getsockname()[1]}/api/v1"), read
    listening.close()
    thread.join(10)


def test_a_failure_of_tls_after_the_request_leaves_open_whether_it_was_accepted(
    tls_service, tmp_path, monkeypatch
):
    """The service has read the call: it may have rented a machine."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "cert.pem"))
    wire, read = tls_service
    with pytest.raises(WireError) as caught:
        wire.post("launch", {})
    assert (caught.value.failure, caught.value.was_sent) == (CallFailure.BROKEN_OFF, True)
    assert len(read) == 1


def test_a_certificate_that_is_not_accepted_gets_no_request(tls_service, monkeypatch):
    """Nothing was sent, and the certificate is named."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    wire, read = tls_service
    with pytest.raises(WireError, match="certificate of 127") as caught:
        wire.post("launch", {})
    assert (caught.value.failure, caught.value.was_sent) == (CallFailure.CERTIFICATE, False)
    assert read == []
