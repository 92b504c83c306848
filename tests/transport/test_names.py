"""Names of hosts that nobody can look up: by a resolver of our own, in a client with a resolv.conf of its own."""

import os
import socket
import subprocess

import pytest
from testbed.client import LAUNCH, missing

pytestmark = pytest.mark.testbed
SILENT, REFUSING = "127.0.0.53", "127.0.0.54"
SERVER_FAILURE = 0x8182  # an answer's flags, RFC 1035, 4.1.1: a server that cannot say
IN_A_CLIENT = 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"'


@pytest.fixture
def asked(client):
    """Start `launch probe --host box`, whose name only the resolver at an address would know."""
    if os.geteuid() != 0:
        missing("a resolv.conf of its own needs root")
    (client.project / "launch.toml").write_text('[hosts.box]\naddress = "box.example"\nuser = "ada"\n')

    started = []

    def start(address):
        resolver = client.home / "resolv.conf"
        resolver.write_text(f"nameserver {address}\noptions timeout:30 attempts:5\n")
        process = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "sh",
                "-ec",
                IN_A_CLIENT,
                "sh",
                resolver,
                *LAUNCH,
                "probe",
                "--host",
                "box",
            ],
            cwd=client.project,
            env=client.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_resolver_that_never_answers_costs_no_more_than_the_connect_deadline(asked):
    """It has the question, and the C library would wait 150 s for it: exit code 4, with the name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind((SILENT, 53))
        resolver.settimeout(60)
        process = asked(SILENT)
        assert b"\x03box\x07example\x00" in resolver.recv(512)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 4, err
    assert err.startswith("box: no resolver answers within 10 s for 'box.example'")
    assert "Traceback" not in err


def test_a_resolver_that_cannot_say_is_not_told_as_a_wrong_name(asked):
    """A network that is down for now is no misspelt name, and the message does not send anybody to launch.toml."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind((REFUSING, 53))
        resolver.settimeout(0.1)
        process = asked(REFUSING)
        while process.poll() is None:
            try:
                question, whence = resolver.recvfrom(512)
            except TimeoutError:
                continue
            flags = SERVER_FAILURE.to_bytes(2, "big")
            resolver.sendto(question[:2] + flags + question[4:6] + bytes(6) + question[12:], whence)
        _, err = process.communicate()
    assert process.returncode == 4, err
    assert "box: 'box.example' cannot be resolved at the moment" in err
    assert "launch.toml" not in err
