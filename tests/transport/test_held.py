"""Connections that are held between commands. sshd's own log counts logins, and the kernel counts connections, not we."""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, until
from testbed.link import Link
from testbed.sshd import ADDRESS
from testbed.tables import mostly_long

from launcher.base import user_sockets
from launcher.errors import ConnectionLostError, HostError, PortClosedError, RefusedStreamError
from launcher.transport import connection_server, persistent_connection, persistent_socket
from launcher.transport.connecting import connect, open_shared_connection
from launcher.transport.persistent_connection import PersistentConnection
from launcher.transport.ssh import ssh_keys
from launcher.transport.ssh.ssh import SshConnection

pytestmark = pytest.mark.testbed

RUN = "261126-held-aaaaaa"
HELD_LONG_S = 300  # longer than any test waits
LOADED = """
import json, sys
from launcher.cli import main
try:
    main()
finally:
    open("loaded.json", "w").write(json.dumps(sorted(sys.modules)))
"""
PREPARES = """
import sys, time
from launcher.transport.connecting import connect
from launcher.values.host import Host
desk = connect(Host.model_validate_json(sys.argv[1]))
desk._channel.call("create", b"{}", run=sys.argv[2])
print("prepared", flush=True)
time.sleep(600)
"""


class Place:
    """An SSH host whose connections are held, as a client's project and as this process know it."""

    def __init__(self, client, sshd, root, sockets):
        self.client, self.sshd, self.root, self.sockets = client, sshd, root, sockets
        self.keys = {"root": str(root), "hold": 30}

    def table(self, **more):
        """Write the project's table, with other keys than the usual ones."""
        (self.client.project / "launch.toml").write_text(self.sshd.table(**{**self.keys, **more}))

    def host(self, **more):
        """The host as this process knows it."""
        return self.sshd.host(**{**self.keys, **more})

    @property
    def folder(self):
        """The folder of the sockets of the client's home."""
        return Path(user_sockets.folder())

    def held(self):
        """The sockets, by name."""
        folder = self.folder
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return sorted(name for name in names if not name.startswith("opening-"))

    def holders(self):
        """The pids of the holders that use this folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                here = f"XDG_RUNTIME_DIR={self.sockets}\0".encode()
                if (
                    b"launcher.transport.connection_server" in words
                    and here in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
        return [pid for pid in found if not is_gone(pid)]

    def holder(self):
        """The pid of the only holder, once it is ready."""
        until(lambda: self.held() and not persistent_socket.marks(), "a connection that is held")
        (pid,) = self.holders()
        return pid

    def logins(self):
        """How often somebody has logged in, as sshd says."""
        return (self.sshd.folder / "sshd.log").read_text().count("Accepted publickey")

    def leave(self, host):
        """Have a connection to a host held, as a command does that ends; return its holder.

        Nothing is held if a busy host does not let it in; then the next command tries again.
        """

        def is_held():
            if not (self.held() or self.holders()):
                persistent_connection.note(host, needs_person=False)
                persistent_connection.leave()
            return self.held()

        until(is_held, "a connection that is held")
        return self.holder()


@pytest.fixture
def place(client, ssh_host, monkeypatch):
    """An SSH host whose connections are held, in a folder of sockets of its own."""
    sockets = Path(tempfile.mkdtemp(prefix="launch-held-"))
    root = Path(tempfile.mkdtemp(prefix="launch-root-"))
    shutil.chown(root, ssh_host.user)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    monkeypatch.setenv("HOME", str(client.home))
    client.variables["XDG_RUNTIME_DIR"] = str(sockets)
    made = Place(client, ssh_host, root / "root", sockets)
    made.table()
    yield made
    for pid in made.holders():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: is_gone(pid), "the holder's end")
    for folder in (sockets, root):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow(reason="several commands, each in a Python of its own")
def test_the_next_commands_make_no_connection_and_load_neither_fabric_nor_paramiko(place):
    """A listing, a launch, a log, a stop: sshd sees two logins, the first command's and the holder's."""
    before = place.logins()
    place.client.ok("ps", "--host", "A")
    place.holder()
    place.client.is_forked = False
    place.client.program = [sys.executable, "-c", LOADED]
    for words in (
        ["ps", "--host", "A"],
        ["--host", "A", "--detach", "--", "sh", "-c", "echo said; sleep 600"],
        ["logs"],
        ["stop", "--now", "--yes", "last"],
        ["attach", "last"],
    ):
        done = place.client.run(*words)
        assert done.returncode in ((0,) if words[0] != "attach" else (0, 1)), done.stderr
        loaded = json.loads((place.client.project / "loaded.json").read_text())
        assert "launcher.transport.persistent_connection" in loaded
        assert not {"fabric", "paramiko", "invoke", "cryptography"} & {*loaded}, words
    assert place.logins() == before + 2
    assert place.sshd.streams() == 1


def test_what_is_shown_of_a_host_is_the_same_through_a_held_connection(place):
    """Its user, address and key, and the command by which a person does the same."""
    with connect(place.host()) as alone:
        place.leave(place.host())
        with connect(place.host()) as desk:
            assert isinstance(desk._channel._link, persistent_connection.PersistentLink)
            assert (desk.about, desk.root_id) == (alone.about, alone.root_id)
            assert desk.by_hand("id") == alone.by_hand("id")


def test_two_clients_share_a_connection(place):
    """Each has an agent of its own, and neither waits for the other."""
    place.leave(place.host())
    before = place.logins()
    with (
        connect(place.host()) as one,
        connect(place.host()) as other,
        open_shared_connection(place.host()) as line,
    ):
        one._channel.call("create", b"{}", run=RUN)
        assert [other._channel.call("holds").values, one._channel.call("holds").values] == [
            {"holds": False},
            {"holds": True},
        ]
        with line.client() as desk:
            assert desk.root_id == one.root_id
        assert (place.root / "runs" / RUN).is_dir()
    until(lambda: not (place.root / "runs" / RUN).exists(), "the removal of what was prepared")
    assert place.logins() == before


@pytest.mark.long
def test_a_command_beside_a_run_works_right_after_its_launch(place):
    """Each command has an agent of its own: one that has started a run has its keeper as a child."""
    place.client.ok("ps", "--host", "A")
    place.holder()
    place.client.ok("--host", "A", "--detach", "--", "sleep", "600")
    for _ in range(3):
        assert place.client.ok("exec", "last", "--", "echo", "beside") == "beside\n"
    place.client.ok("stop", "--now", "--yes", "last")


def test_a_run_that_a_killed_client_was_preparing_is_removed(place):
    """Its agent on the host hears of the end, although the connection stays."""
    holder = place.leave(place.host())
    words = [sys.executable, "-c", PREPARES, place.host().model_dump_json(), RUN]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "prepared\n"
    assert (place.root / "runs" / RUN).is_dir()
    process.kill()
    process.communicate()
    until(lambda: not (place.root / "runs" / RUN).exists(), "the removal of what was prepared")
    assert place.holders() == [holder]
    assert place.sshd.streams() == 1


def test_a_command_whose_holder_is_killed_connects_again(place):
    """As after any lost link; the socket that is left is used by nobody, and is removed by the next holder."""
    place.client.ok("ps", "--host", "A")
    holder, names = place.holder(), place.held()
    process = place.client.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 3; echo ended")
    assert process.stdout.readline() == "begun\n"
    os.kill(holder, signal.SIGKILL)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "ended" in out
    assert "Traceback" not in err
    assert until(lambda: len(place.holders()) == 1 and place.held() == names, "a new holder")


def test_an_open_desk_whose_holder_is_killed_says_that_its_connection_is_lost(place):
    """So do its line, and what it opens next."""
    holder = place.leave(place.host())
    with open_shared_connection(place.host()) as line:
        desk = line.client()
        os.kill(holder, signal.SIGKILL)
        with pytest.raises(ConnectionLostError):
            desk.runs.summaries()
        with pytest.raises(ConnectionLostError):
            desk.open_port(1)
        with line.client() as again:
            assert again.runs.summaries() == []


def test_a_link_that_has_frozen_is_dropped_before_it_is_used(place):
    """The next command waits for seconds only, connects anew, and the frozen connection is given up."""
    with Link(ADDRESS, place.sshd.port) as link:
        known_hosts = place.sshd.known_as(link.address, link.port)
        host = place.host(address=link.address, port=link.port, known_hosts=known_hosts)
        holder = place.leave(host)
        assert link.strand() == 1
        began = time.monotonic()
        with connect(host) as desk:
            assert not isinstance(desk._channel._link, persistent_connection.PersistentLink)
            assert desk.runs.summaries() == []
        assert time.monotonic() - began < 15
        until(lambda: is_gone(holder), "the end of the holder", timeout=30)
        assert place.held() == []


def test_a_holder_that_is_stopped_holds_up_no_command(place):
    """It takes the connection and says nothing. Two seconds are lost at most, and it is not there any more."""
    holder = place.leave(place.host())
    began = time.monotonic()
    with connect(place.host(hold=0)):
        alone_s = time.monotonic() - began
    os.kill(holder, signal.SIGSTOP)
    began = time.monotonic()
    with connect(place.host()) as desk:
        assert time.monotonic() - began < alone_s + 3
        assert not isinstance(desk._channel._link, persistent_connection.PersistentLink)
        assert is_gone(holder)
        assert persistent_connection.states() == []


@pytest.mark.long
def test_a_holder_that_is_only_slow_ends_with_the_command_that_uses_it(place, monkeypatch):
    """It works, and is not killed; the next command does not find it."""
    holder = place.leave(place.host())

    def hears_nothing(_stream):
        raise TimeoutError

    with connect(place.host()) as desk, monkeypatch.context() as slow:
        assert isinstance(desk._channel._link, persistent_connection.PersistentLink)
        slow.setattr(persistent_socket, "hear", hears_nothing)
        with connect(place.host()) as other:
            assert not isinstance(other._channel._link, persistent_connection.PersistentLink)
        slow.undo()
        assert place.held() == []
        assert desk.runs.summaries() == []
        assert place.holders() == [holder]
    until(lambda: is_gone(holder), "the end of the holder")


def change_known_hosts(place):
    """Another key is known for another host."""
    known = place.client.home / "known"
    place.table(known_hosts=str(known))
    known.write_bytes(place.sshd.known_hosts.read_bytes())
    return known, lambda: known.write_bytes(known.read_bytes() + b"# looked at\n")


def change_key_file(place):
    """The key's file is written again."""
    key = place.client.home / "key"
    shutil.copy(place.sshd.folder / "client_key", key)
    place.table(identity_file=str(key))
    return key, lambda: os.utime(key)


def change_ssh_config(place):
    """A line that says nothing about keys."""
    config = place.client.home / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text("")
    return config, lambda: config.write_text(f"Host {ADDRESS}\n  IdentitiesOnly yes\n")


def change_table(place):
    """Another root."""
    return None, lambda: place.table(root=f"{place.root}-other")


def change_hold(place):
    """Nothing is to be held."""
    return None, lambda: place.table(hold=0)


@mostly_long(
    "prepare", [change_known_hosts, change_key_file, change_ssh_config, change_table, change_hold], ci=(0,)
)
def test_a_connection_is_not_used_once_what_it_was_made_by_has_changed(place, prepare):
    """The next command logs in by itself; sshd says so."""
    _, change = prepare(place)
    place.client.ok("ps", "--host", "A")
    place.holder()
    before = place.logins()
    place.client.ok("ps", "--host", "A")
    assert place.logins() == before
    change()
    place.client.ok("ps", "--host", "A")
    assert place.logins() > before


def test_a_known_key_that_is_taken_away_is_missed_at_once(place):
    """The connection that is held would still work."""
    known = place.client.home / "known"
    known.write_bytes(place.sshd.known_hosts.read_bytes())
    place.table(known_hosts=str(known))
    place.client.ok("ps", "--host", "A")
    place.holder()
    known.write_text("")
    done = place.client.run("ps", "--host", "A")
    assert done.returncode == 4
    assert "host key is not known" in done.stderr


def open_the_folder(place, path):
    path.parent.chmod(0o770)


def open_the_socket(place, path):
    path.chmod(0o660)


def give_the_folder_away(place, path):
    shutil.chown(path.parent, place.sshd.user)


def give_the_socket_away(place, path):
    shutil.chown(path, place.sshd.user)


def open_the_parent(place, path):
    path.parents[1].chmod(0o777)


@mostly_long(
    "spoil",
    [open_the_folder, open_the_socket, give_the_folder_away, give_the_socket_away, open_the_parent],
    ci=(0, 3),
)
def test_a_socket_that_others_could_have_made_is_not_used(place, spoil):
    """The command connects by itself, and says nothing about it."""
    if os.geteuid() != 0 and "away" in spoil.__name__:
        pytest.skip("only root gives a file away")
    place.leave(place.host())
    (name,) = place.held()
    spoil(place, place.folder / name)
    before = place.logins()
    with connect(place.host()) as desk:
        assert not isinstance(desk._channel._link, persistent_connection.PersistentLink)
    assert place.logins() == before + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_process_of_another_user_is_told_apart_by_the_kernel(place):
    """At either end, even where the socket could be opened by all."""
    place.sockets.chmod(0o755)
    path = place.sockets / "open"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o666)
        for user in (pwd.getpwnam(place.sshd.user).pw_uid, os.getuid()):
            child = os.fork()
            if child == 0:
                os.setuid(user)
                with socket.socket(socket.AF_UNIX) as stream:
                    stream.connect(str(path))
                    stream.recv(1)
                os._exit(0)
            client, _ = listener.accept()
            with client:
                if user == os.getuid():
                    user_sockets.check_peer(client)
                else:
                    with pytest.raises(user_sockets.UnsafeSocketError, match="another user"):
                        user_sockets.check_peer(client)
            assert os.waitpid(child, 0)[1] == 0


def test_a_holder_has_nothing_of_its_commands_open(place):
    """Its folder is the root's, its variables are those of a list, and a pipe of the command ends with it."""
    place.client.variables["A_VARIABLE_OF_MINE"] = "mine"
    process = place.client.start("--host", "A", "--", "true")
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    holder = place.holder()
    assert os.readlink(f"/proc/{holder}/cwd") == "/"
    opened = [os.readlink(path) for path in Path(f"/proc/{holder}/fd").iterdir()]
    assert not [name for name in opened if name.startswith(("/dev/pts", str(place.client.project)))]
    assert opened.count("/dev/null") == 2
    environ = Path(f"/proc/{holder}/environ").read_bytes()
    assert b"A_VARIABLE_OF_MINE" not in environ
    assert f"HOME={place.client.home}\0".encode() in environ


def memory(pid):
    """All that a process has in its memory, piece by piece."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if mode.startswith("r") and "[v" not in line:
                with contextlib.suppress(OSError, OverflowError, ValueError):
                    file.seek(int(begin, 16))
                    yield file.read(int(end, 16) - int(begin, 16))


def has_in_memory(pid, words):
    """Whether a process has some bytes in its memory."""
    return any(words in piece for piece in memory(pid))


@pytest.mark.slow(reason="a launch")
def test_a_secret_that_went_through_a_holder_is_not_in_its_memory(place):
    """It passes the secret on, and overwrites what it frees."""
    secret = f"secret-{os.urandom(12).hex()}"
    place.client.ok("ps", "--host", "A")
    holder = place.holder()
    place.client.variables["MY_TOKEN"] = secret
    before = place.logins()
    shown = place.client.ok(
        "--host", "A", "-s", "MY_TOKEN", "--", "sh", "-c", 'test "$MY_TOKEN" && echo "${#MY_TOKEN}"'
    )
    assert str(len(secret)) in shown
    assert (place.logins(), place.holders()) == (before, [holder])
    until(lambda: persistent_connection.states()[0].users == 0, "the end of all streams")
    assert has_in_memory(holder, str(place.sshd.folder / "client_key").encode())
    assert not has_in_memory(holder, secret.encode())


def test_nothing_is_held_longer_than_the_table_says(place):
    """Three seconds after the last command, here: the socket, the process and the connection are gone."""
    host = place.host(hold=3)
    holder = place.leave(host)
    with connect(host):
        time.sleep(4)  # it is in use for longer than that
        assert place.holders() == [holder]
        assert not is_gone(holder)
    until(lambda: is_gone(holder), "the end of the holder")
    assert place.held() == []
    until(lambda: place.sshd.streams() == 0, "the end of the connection")


def test_nothing_is_held_where_the_table_says_so(place):
    """`hold = 0`."""
    place.table(hold=0)
    place.client.ok("ps", "--host", "A")
    assert place.holders() == []
    persistent_connection.note(place.host(hold=0), needs_person=False)
    persistent_connection.leave()
    assert place.holders() == []


def test_nothing_is_held_where_somebody_was_asked(place):
    """A second login would ask again."""
    persistent_connection.note(place.host(), needs_person=True)
    persistent_connection.leave()
    assert place.holders() == []


def test_a_login_knows_whether_it_needed_somebody(place, monkeypatch):
    """A key with a passphrase does, even when it was unlocked before; a plain one does not."""
    locked = place.client.home / "locked"
    shutil.copy(place.sshd.folder / "client_key", locked)
    words = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "a phrase", "-f", str(locked)]
    subprocess.run(words, check=True, capture_output=True)
    unlocked = ssh_keys._load(str(locked), "a phrase")
    monkeypatch.setitem(ssh_keys._unlocked, str(locked), unlocked)
    for key, needs_person in ((locked, True), (place.sshd.folder / "client_key", False)):
        with contextlib.closing(SshConnection(place.host(identity_file=str(key)))) as connection:
            assert connection.needs_person == needs_person


def test_hosts_shows_what_is_held_and_closes_it(place):
    """By its own words and as JSON; what is closed is gone for the kernel too."""
    place.client.ok("ps", "--host", "A")
    holder = place.holder()
    (row,) = json.loads(place.client.ok("hosts", "--json"))["connections"]
    assert (row["host"], row["pid"], row["users"]) == ("A", holder, 0)
    assert 0 < row["left_s"] <= 30
    shown = place.client.ok("hosts")
    assert re.search(rf"A +{place.sshd.user}@{ADDRESS}.* {holder}\n", shown)
    assert "launch hosts --close" in shown
    assert place.client.ok("hosts", "--close") == "A: its connection is closed\n"
    assert is_gone(holder)
    assert place.held() == []
    until(lambda: place.sshd.streams() == 0, "the end of the connection")
    assert place.client.ok("hosts", "--close") == "no connection is kept open\n"


def test_another_home_of_the_same_user_sees_no_connection_of_this_one(place, tmp_path):
    """It shows, uses and closes its own alone; a home is the same by another path."""
    place.client.ok("ps", "--host", "A")
    holder, held_here = place.holder(), place.held()
    home = place.client.home
    (tmp_path / "other").mkdir()
    place.client.home = tmp_path / "other"
    assert place.client.ok("hosts", "--close") == "no connection is kept open\n"
    assert json.loads(place.client.ok("hosts", "--json"))["connections"] == []
    assert not is_gone(holder)
    assert place.held() == held_here
    (tmp_path / "link").symlink_to(home)
    place.client.home = tmp_path / "link"
    (row,) = json.loads(place.client.ok("hosts", "--json"))["connections"]
    assert row["pid"] == holder


def test_close_gives_up_a_connection_that_is_just_being_made(place):
    """Right behind the command that has left it, and while it waits for a host that is silent. The process has ended by then."""
    place.client.ok("ps", "--host", "A")
    said = place.client.ok("hosts", "--close")
    assert place.holders() == []
    assert said in (
        "A: the connection that was being opened for the next command is cancelled\n",
        "A: its connection is closed\n",
    )
    with Link(ADDRESS, place.sshd.port) as link:
        link.freeze()
        persistent_connection.note(place.host(address=link.address, port=link.port), needs_person=False)
        persistent_connection.leave()
        until(lambda: link.accepted, "the process that connects")
        assert len(place.holders()) == 1
        assert persistent_connection.close_all() == persistent_connection.Closing([], ["A"])
        assert place.holders() == []
    assert [*place.folder.iterdir()] == []
    assert persistent_connection.close_all() == persistent_connection.Closing([], [])


def test_what_was_given_up_is_not_held_even_if_it_connects_meanwhile(place):
    """Its mark is gone when it would listen."""
    persistent_connection.note(place.host(hold=600), needs_person=False)
    persistent_connection.leave()
    (mark,) = persistent_socket.marks()
    (pid,) = until(place.holders, "the process that connects")
    mark.unlink()
    until(lambda: is_gone(pid), "its end")
    assert [*place.folder.iterdir()] == []


def test_the_end_of_a_failed_attempt_leaves_no_mark(place):
    """Nobody listens at the host's port."""
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]
    persistent_connection.note(place.host(port=port), needs_person=False)
    persistent_connection.leave()
    assert len(persistent_socket.marks()) == 1
    until(lambda: not persistent_socket.marks(), "the end of the attempt")
    assert persistent_connection.close_all() == persistent_connection.Closing([], [])


def test_close_ends_a_holder_that_is_stopped(place):
    """It says nothing, and holds a connection all the same."""
    holder = place.leave(place.host())
    os.kill(holder, signal.SIGSTOP)
    assert [(one.host, one.pid) for one in persistent_connection.close_all().held] == [("A", holder)]
    assert is_gone(holder)
    assert place.held() == []


def test_what_is_in_use_is_closed_when_its_command_ends(place):
    """The desk goes on, and nobody else gets in."""
    holder = place.leave(place.host())
    with connect(place.host()) as desk:
        assert "once the commands that use it have ended" in place.client.ok("hosts", "--close")
        until(lambda: not place.held(), "the end of the socket")
        assert desk.runs.summaries() == []
        assert not is_gone(holder)
    until(lambda: is_gone(holder), "the end of the holder")


@pytest.mark.long
def test_a_command_that_talks_to_many_hosts_leaves_no_connection(place):
    """It uses one that is there."""
    with (place.client.project / "launch.toml").open("a") as file:
        file.write(place.sshd.table("B", **place.keys))
    place.client.ok("hosts")
    assert (place.holders(), place.held()) == ([], [])
    place.client.ok("ps", "--host", "A")
    holder, before = place.holder(), place.logins()
    place.client.ok("hosts")
    assert place.logins() == before + 1
    assert place.holders() == [holder]


def test_two_commands_that_end_at_once_leave_one_connection(place):
    """The second holder finds the first one's socket."""
    for _ in range(2):
        persistent_connection.note(place.host(), needs_person=False)
        persistent_connection.leave()
    until(lambda: place.held() and len(place.holders()) == 1, "one holder")
    until(lambda: place.sshd.streams() == 1, "one connection")


@pytest.fixture
def desk(place):
    """A desk on a held connection."""
    place.leave(place.host())
    with connect(place.host()) as desk:
        assert isinstance(desk._channel._link, persistent_connection.PersistentLink)
        yield desk


def read_all(stream):
    """All that comes until the end."""
    stream.settimeout(30)
    data = b""
    while piece := stream.recv(1 << 16):
        data += piece
    return data


def test_a_stream_to_a_port_ends_in_one_direction_before_the_other(desk):
    """What was sent is answered after its end; a client that leaves is noticed by what listens."""
    noticed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as first:
                first.sendall(read_all(first)[::-1])
            with server.accept()[0] as second, contextlib.suppress(OSError):
                second.sendall(b"hello")
                read_all(second)
                noticed.set()

        thread = threading.Thread(target=serve)
        thread.start()
        stream = desk.open_port(server.getsockname()[1])
        stream.sendall(b"abc" * 100_000)
        stream.shutdown(socket.SHUT_WR)
        assert read_all(stream) == b"cba" * 100_000
        stream.close()
        stream = desk.open_port(server.getsockname()[1])
        assert stream.recv(5) == b"hello"
        stream.close()
        assert noticed.wait(30)
        thread.join()


def test_what_refuses_a_stream_refuses_it_through_a_holder_too(desk):
    """With the error's own type and words."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(PortClosedError, match=f"A: no process listens on port {port}"):
        desk.open_port(port)
    with pytest.raises(RefusedStreamError, match="no process listens on it"):
        desk.open_socket("/nowhere")


def test_a_socket_and_a_program_are_reached_through_a_holder(desk, place):
    """The engine is reached by the first, and through `sudo -n` by the second."""
    path = place.root.parent / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        stream = desk.open_socket(str(path))
        with listener.accept()[0] as other:
            stream.sendall(b"up")
            assert other.recv(2) == b"up"
            other.sendall(b"down")
        assert read_all(stream) == b"down"
        stream.close()
    program = desk.open_program(["tr", "a-z", "A-Z"])
    program.sendall(b"loud")
    program.shutdown(socket.SHUT_WR)
    assert read_all(program) == b"LOUD"
    program.close()


def test_a_root_that_was_replaced_meanwhile_is_another_root(place):
    """The agent that waited has greeted with the id of the old one."""
    with connect(place.host()) as desk:
        before = desk.root_id
    holder = place.leave(place.host())
    shutil.rmtree(place.root)
    with connect(place.host()) as desk:
        assert isinstance(desk._channel._link, persistent_connection.PersistentLink)
        assert desk.root_id not in ("", before)
        assert desk.root_id == os.readlink(place.root / "root-id")
    assert place.holders() == [holder]


def test_a_client_that_says_nothing_or_nonsense_harms_nobody(place):
    """The others are served meanwhile."""
    place.leave(place.host())
    path = place.folder / place.held()[0]
    with persistent_socket.connect(path, 5), persistent_socket.connect(path, 5) as loud:
        loud.sendall(b"\xff" * 100)
        with connect(place.host()) as desk:
            assert desk.runs.summaries() == []
        with contextlib.suppress(ConnectionResetError):
            assert loud.recv(1) == b""
    connection = PersistentConnection("A", path)
    try:
        with pytest.raises(Exception, match="does not know this request"):
            connection._open(open="nonsense")
    finally:
        connection.close()


class Drips:
    """A login that prints without end, and begins no agent."""

    def settimeout(self, timeout):
        """There is nothing to wait for."""

    def recv(self, size):
        """Return a little more."""
        return b"welcome "


@pytest.mark.parametrize("bound", ["MAX_NOISE", "AGENT_S"])
def test_a_login_that_prints_without_end_is_given_up(monkeypatch, bound):
    """By its bytes, and by its time however slowly it prints."""
    monkeypatch.setattr(connection_server, bound, 0.0)
    with pytest.raises(HostError, match="prints endless output"):
        connection_server._greeting("box", Drips())
