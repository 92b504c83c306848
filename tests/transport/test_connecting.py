"""What a command does until it is logged in to a host. The witness is a listener that speaks no SSH."""

import contextlib
import json
import os
import socket
import threading

import pytest


@pytest.fixture
def listener():
    """Listen on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def ssh_words(client):
    """A file with the words that ssh is run with, by a program of this name that runs the real one."""
    said, ssh = client.home / "said", client.home / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {said}\nexec /usr/bin/ssh "$@"\n')
    ssh.chmod(0o755)
    client.variables["PATH"] = f"{ssh.parent}:{os.environ['PATH']}"
    return said


def table(listener):
    """Return a host's table whose address is the listener's."""
    return f'[hosts.far]\naddress = "127.0.0.1"\nport = {listener.getsockname()[1]}\nhold = 0\n'


@pytest.mark.parametrize("key", ["address", "user"])
def test_what_a_host_may_not_be_called_reaches_no_ssh(client, ssh_words, key):
    """An older ssh gives the host's name and user to the shell of a `Match exec` unchecked."""
    values = {"address": "127.0.0.1", "user": "ada", key: "$(touch pwned)"}
    written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    (client.project / "launch.toml").write_text(f"[hosts.far]\n{written}")
    assert client.run("ps", "--host", "far").returncode == 2
    assert not ssh_words.exists()


@pytest.mark.parametrize("where", ["config", "included"])
def test_a_program_that_ssh_runs_for_a_name_runs_only_for_a_command_that_connects(client, listener, where):
    """`Match exec` may open a tunnel, or ask something: not for a word that is misspelt."""
    folder = client.home / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Include included\n")
    with (folder / where).open("a") as file:
        file.write(f'Match originalhost far exec "touch {folder}/ran"\n  User eve\n')
    (client.project / "launch.toml").write_text(table(listener))
    assert client.run("--host", "far", "--no-such-option").returncode == 2
    assert not (folder / "ran").exists()


def test_a_name_that_cannot_be_looked_up_is_looked_up_once(client, listener):
    """The error of the first try is reported, and nobody waits for a second one."""
    (client.project / "launch.toml").write_text(table(listener))
    ssh = client.home / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f"#!/bin/sh\necho x >> {client.home}/asked\necho 'line 1: Bad configuration' >&2\nexit 255\n"
    )
    ssh.chmod(0o755)
    client.variables["PATH"] = f"{ssh.parent}:{os.environ['PATH']}"
    done = client.run("ps", "--host", "far")
    assert done.returncode == 2, done.stderr
    assert "Bad configuration" in done.stderr
    assert (client.home / "asked").read_text() == "x\n"


@pytest.mark.parametrize(
    ("greeting", "stays", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "does not speak SSH"),
        pytest.param(b"SSH", True, "does not answer within 10 s", marks=pytest.mark.long),
    ],
    ids=["a web server", "a greeting that stops"],
)
def test_what_answers_as_no_ssh_server_does_is_told_in_words(client, listener, greeting, stays, said):
    """A web server, for example; a greeting that stops is waited for as long as any answer."""
    (client.project / "launch.toml").write_text(table(listener))
    process = client.start("ps", "--host", "far")
    visitors = []

    def greet():
        with contextlib.suppress(OSError):
            while True:
                visitors.append(listener.accept()[0])
                visitors[-1].sendall(greeting)
                if not stays:
                    visitors.pop().close()

    threading.Thread(target=greet, daemon=True).start()
    _, err = process.communicate(timeout=180)
    for visitor in visitors:
        visitor.close()
    assert process.returncode == 4
    assert said in err
