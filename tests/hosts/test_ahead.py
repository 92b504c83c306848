"""A connection that begins before the command line is loaded. The witness is a listener that speaks no SSH."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from testbed.client import until
from testbed.link import Link
from testbed.sshd import ADDRESS

from launcher.hosts import ahead
from launcher.hosts.ssh_config import hops

HELD_BACK = """
import os, pathlib, sys, time
def hold_back(event, arguments):
    if event == "import" and arguments[0] == {name!r}:
        deadline = time.monotonic() + 10
        while not pathlib.Path("came").exists():
            if time.monotonic() > deadline:
                print("nobody connected", file=sys.stderr)
                os._exit(9)
            time.sleep(0.001)
sys.addaudithook(hold_back)
from launcher.cli import main
main()
"""
BEGUN = """
import sys
from launcher.cli import early
from launcher.hosts import ahead
early.begin(sys.argv[1:])
print(ahead._begun is not None and ahead._begun.is_direct)
"""

NOTED = """
import os, pathlib, sys
def note(event, arguments):
    if event == "import" and arguments[0] == "docker":
        pathlib.Path("loads").touch()
sys.addaudithook(note)
from launcher.cli import main
main()
"""


@pytest.fixture
def listener():
    """Listen on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


def table(listener, more=""):
    """Return a host's table whose address is the listener's."""
    return f'[hosts.far]\naddress = "127.0.0.1"\nport = {listener.getsockname()[1]}\nhold = 0\n{more}'


def log_of(host):
    """Return what sshd has logged."""
    return (host.folder / "sshd.log").read_text()


def started(client, name, *words):
    """Start a command that loads a module only once the listener had a visitor."""
    client.program = [sys.executable, "-c", HELD_BACK.format(name=name)]
    return client.start(*words)


@pytest.mark.parametrize("name", ["typer", "pydantic", "fabric"])
@pytest.mark.parametrize(
    "words", [["--host", "far", "--", "true"], ["ps", "--host=far"], ["probe", "--host", "far"]]
)
def test_the_connection_begins_before_the_command_line_is_loaded(client, listener, name, words):
    """What is loaded later waits for it here: if it came later, the command would end otherwise."""
    (client.project / "launch.toml").write_text(table(listener))
    process = started(client, name, *words)
    visitor, _ = listener.accept()
    (client.project / "came").touch()
    with visitor:
        visitor.sendall(b"hello\r\n" * 300)  # so it is no sshd
    _, said = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "far: 127.0.0.1:" in said


def test_the_connection_that_began_is_the_one_that_is_used(client, listener):
    """It is one connection, and the first to speak on it is the server."""
    (client.project / "launch.toml").write_text(table(listener))
    process = started(client, "fabric", "ps", "--host", "far")
    visitor, _ = listener.accept()
    (client.project / "came").touch()
    with visitor:
        visitor.settimeout(10)
        visitor.sendall(b"SSH-2.0-none\r\n")
        assert visitor.recv(4) == b"SSH-"
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    process.communicate(timeout=60)
    assert process.returncode == 4


@pytest.mark.parametrize(("runtime", "loads"), [("docker", True), ("native", False)])
def test_what_asks_an_engine_loads_while_the_host_is_probed(client, runtime, loads):
    """The host's nvidia-smi waits for that, as long as the probe may take: else nothing had a reason to load it before."""
    smi, loaded = client.home / "bin" / "nvidia-smi", client.project / "loads"
    smi.parent.mkdir()
    smi.write_text(
        f"#!/bin/sh\nfor _ in $(seq 30); do [ -e {loaded} ] && : > {loaded}.in.time && break; sleep 0.1; done\n"
    )
    smi.chmod(0o755)
    client.variables["PATH"] = f"{smi.parent}:{os.environ['PATH']}"
    client.program = [sys.executable, "-c", NOTED]
    client.start("--host", "local", "--runtime", runtime, "--", "true").communicate(timeout=60)
    assert loaded.with_name("loads.in.time").exists() is loads


@pytest.mark.parametrize("words", [["--no-such-option"], ["--gpus", "x", "extra"], ["--job", "none.toml"]])
def test_a_command_that_fails_before_it_connects_has_sent_nothing_and_leaves_nothing(client, listener, words):
    """To a host that has not greeted: the listener reads the end of the stream, and no byte before it."""
    (client.project / "launch.toml").write_text(table(listener))
    process = started(client, "typer", "--host", "far", *words)
    visitor, _ = listener.accept()
    (client.project / "came").touch()
    process.communicate(timeout=60)
    assert process.returncode == 2
    with visitor:
        visitor.settimeout(10)
        assert visitor.recv(1) == b""


@pytest.mark.testbed
def test_a_command_that_fails_before_it_connects_has_not_logged_in(client, ssh_host):
    """Keys may have been exchanged by then, by which a host learns nothing. The witness is sshd's own log."""
    (client.project / "launch.toml").write_text(ssh_host.table(hold=0))
    before = len(log_of(ssh_host))
    for _ in range(3):
        assert client.run("--host", "A", "--no-such-option").returncode == 2
    client.ok("ps", "--host", "A")
    said = log_of(ssh_host)[before:]
    assert said.count("Accepted publickey") == 1
    assert "Failed" not in said


@pytest.mark.testbed
def test_a_host_key_that_changed_is_refused_although_keys_were_exchanged_with_it(client, ssh_host, tmp_path):
    """What was begun ahead is judged as any other connection, before the login."""
    other = tmp_path / "known"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    kind, key, *_ = (tmp_path / "key.pub").read_text().split()
    other.write_text(f"[{ADDRESS}]:{ssh_host.port} {kind} {key}\n")
    (client.project / "launch.toml").write_text(ssh_host.table(hold=0, known_hosts=str(other)))
    before = len(log_of(ssh_host))
    done = client.run("ps", "--host", "A")
    assert done.returncode == 4
    assert "changed" in done.stderr
    assert "Accepted" not in log_of(ssh_host)[before:]


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("--host far -- true", True),
        ("-- true", True),
        ("", True),
        ("run --host far", True),
        ("--host far --dry-run", True),
        ("probe --host far", True),
        ("--host alias", True),
        ("--host far --help", False),
        ("--host far --dry-run --probe saved.json", False),
        ("--host far --dry-run --probe=saved.json", False),
        ("--host local -- true", False),
        ("--host none", False),
        ("--host cloud", False),
        ("--host mute", False),
        ("--host far --host alias", False),
        ("--host jumped", False),
        ("--host proxied", False),
        ("--host", False),
        ("ps", False),
        ("hosts --host far", False),
        ("-- --host far", True),
        ("--version", False),
    ],
)
def test_only_words_that_lead_to_a_connection_begin_one(client, listener, words, begins):
    """And only to a machine that is reached directly."""
    more = '[hosts.cloud]\nkind = "lambda-cloud"\nmax_hours = 1\n[hosts.mute]\nport = 22\n'
    hops_of = "Host alias\nHostname 127.0.0.1\nHost jumped\nProxyJump alias\nHost proxied\nProxyCommand cat\n"
    (client.project / "launch.toml").write_text(f'host = "far"\n{table(listener, more)}')
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text(hops_of)
    assert begun(client, *words.split()) is begins


@pytest.mark.parametrize(
    "written", ["hosts = 1", "[hosts]\nfar = 1", "not toml", "[hosts.far]\naddress = 7", "\xff"]
)
def test_a_file_that_cannot_be_read_begins_nothing(client, written):
    """It is reported when it is read again."""
    (client.project / "launch.toml").write_bytes(written.encode("latin-1"))
    assert begun(client, "--host", "far") is False


@pytest.mark.parametrize("key", ["port", "address", "user"])
def test_what_a_host_may_not_be_called_reaches_no_ssh(client, key):
    """An older ssh gives the host's name and user to the shell of a `Match exec` unchecked."""
    values = {"address": "127.0.0.1", "user": "ada", "port": 9} | (
        {key: "$(touch pwned)"} if key != "port" else {}
    )
    written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    (client.project / "launch.toml").write_text(f"[hosts.far]\n{written}")
    said, ssh = client.project / "said", client.home / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {said}\nexec /usr/bin/ssh "$@"\n')
    ssh.chmod(0o755)
    client.variables["PATH"] = f"{ssh.parent}:{os.environ['PATH']}"
    assert begun(client, "--host", "far") is (key == "port")
    assert said.exists() is (key == "port")


def begun(client, *words):
    """Whether a command of these words begins to connect."""
    done = subprocess.run(
        [sys.executable, "-c", BEGUN, *words],
        cwd=client.project,
        env=client.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout.lower())


def test_what_begun_is_taken_for_its_hop_alone_and_else_is_closed(listener):
    """A connection to another port, or one that nobody wants, is not handed on."""
    destination = ahead.Destination("127.0.0.1", port=listener.getsockname()[1])
    (hop,) = hops(destination)
    ahead.begin(destination)
    visitor, _ = listener.accept()
    assert ahead.take(hop._replace(port=1)) is None
    assert ahead.route_to(destination._replace(user="eve")) is None
    assert ahead.route_to(destination) == [hop]
    ahead.drop()
    with visitor:
        visitor.settimeout(10)
        assert visitor.recv(1) == b""
    assert ahead.take(hop) is None


def test_a_port_where_nobody_listens_leaves_the_error_to_whoever_connects(listener):
    """A connection that could not begin is no connection."""
    destination = ahead.Destination("127.0.0.1", port=listener.getsockname()[1])
    listener.close()
    ahead.begin(destination)
    assert ahead.take(hops(destination)[0]) is None


@pytest.mark.testbed
def test_a_connection_that_the_host_has_closed_meanwhile_is_not_handed_on(ssh_host):
    """A server closes a connection that does not log in for a while. The command then connects again."""
    with Link(ADDRESS, ssh_host.port) as link:
        destination = ahead.Destination(link.address, port=link.port)
        ahead.begin(destination)
        begun = ahead._begun
        until(lambda: begun._wire is not None and begun._wire.transport.initial_kex_done, "the keys")
        link.cut()
        until(lambda: not begun._wire.transport.is_active(), "the end of it")
        assert ahead.take(hops(destination)[0]) is None


def test_a_connection_that_nobody_takes_is_closed_after_a_while(listener, monkeypatch):
    """While a question waits for its answer, nothing is kept open, and nothing is read from it."""
    monkeypatch.setattr(ahead, "CONNECT_S", 1)
    destination = ahead.Destination("127.0.0.1", port=listener.getsockname()[1])
    ahead.begin(destination)
    visitor, _ = listener.accept()
    with visitor:
        visitor.settimeout(10)
        visitor.sendall(b"SSH-2.0-none\r\n")
        while visitor.recv(4096):
            pass
    assert ahead.take(hops(destination)[0]) is None


@pytest.mark.parametrize("where", ["config", "included"])
def test_a_program_that_ssh_runs_for_a_name_runs_only_for_a_command_that_connects(client, listener, where):
    """`Match exec` may open a tunnel, or ask something: not for a word that is misspelt."""
    folder = client.home / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Include included\n")
    with (folder / where).open("a") as file:
        file.write(f'Match originalhost far exec "touch {folder}/ran"\n  User eve\n')
    (client.project / "launch.toml").write_text(table(listener))
    assert begun(client, "--host", "far") is False
    assert client.run("--host", "far", "--no-such-option").returncode == 2
    assert not (folder / "ran").exists()


def test_a_name_that_cannot_be_looked_up_is_looked_up_once(client, listener):
    """The command reports the error of the first try, and does not wait for a second one."""
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
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "is no SSH server"),
        pytest.param(
            b"SSH", True, "does not answer within 10 s", marks=pytest.mark.slow(reason="it waits for those")
        ),
    ],
    ids=["a web server", "a greeting that stops"],
)
def test_what_answers_as_no_ssh_server_does_is_told_in_words(client, listener, greeting, stays, said):
    """Whether it spoke to what began ahead, or to the command."""
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
    _, err = process.communicate(timeout=60)
    for visitor in visitors:
        visitor.close()
    assert process.returncode == 4
    assert said in err
