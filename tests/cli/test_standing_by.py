"""Commands that a process runs which stands by for them: they do what they would do in a process of their own.

The kernel is asked what runs where, and `setsid` is the witness: its command is of another session, so it runs by itself.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, until
from testbed.session import Session

from launcher import user_sockets
from launcher.cli import handing_over, standbys, taken_command
from launcher.cli.likeness import traits
from launcher.hosts import background

pytestmark = pytest.mark.testbed
HELD_S = 300  # longer than any test waits


class Terminal(Session):
    """A session of a client whose host is held."""

    def standbys(self):
        """The sockets of the processes that stand by."""
        return sorted(Path(self.client.variables["XDG_RUNTIME_DIR"]).glob("launch-*/standby-*"))

    def standby(self):
        """The pid of the process that stands by, once it does."""
        until(self.standbys, "a process that stands by")
        return self.state()["pid"]

    def state(self):
        """What it says of itself."""
        (row,) = json.loads(self.client.ok("hosts", "--json"))["standbys"]
        return row

    def forks(self):
        """The processes that run handed-over commands, by the kernel's word: each leads a group, as the one that waits for a command does not."""
        return [pid for pid in self.children() if group_of(pid) == pid]

    def waiting(self):
        """The one that waits for the next command."""
        (pid,) = until(
            lambda: [pid for pid in self.children() if pid not in self.forks()], "a fork that waits"
        )
        return pid

    def children(self):
        """Those, and the one that waits."""
        pid = self.state()["pid"]
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def fork(self):
        """The only one."""
        return until(self.forks, "a command that was handed over")[0]


@pytest.fixture
def packages(client, tmp_path):
    """A folder in which Python looks for packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    others = os.environ.get("PYTHONPATH")
    client.variables["PYTHONPATH"] = os.pathsep.join([str(folder), *([others] if others else [])])
    return folder


@pytest.fixture
def terminal(client, ssh_host, packages, tmp_path):
    """A session in which two commands have reached a host whose connection is held, so that a process stands by."""
    sockets = Path(tempfile.mkdtemp(prefix="launch-standby-"))
    client.variables["XDG_RUNTIME_DIR"] = str(sockets)
    (client.project / "launch.toml").write_text(ssh_host.table(hold=HELD_S))
    made = Terminal(client, tmp_path)
    assert made.run("ps", "--host", "A")[0] == 0
    until(lambda: json.loads(client.ok("hosts", "--json"))["connections"], "a connection that is held")
    assert made.standbys() == []
    assert made.run("ps", "--host", "A")[0] == 0
    made.standby()
    yield made
    made.leave()
    client.ok("hosts", "--close")
    with contextlib.suppress(OSError):
        for folder in sockets.iterdir():
            folder.rmdir()
        sockets.rmdir()


def state_of(pid):
    """The kernel's letter for a process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def group_of(pid):
    """The group that a process is of; none if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def open_files(pid):
    """What a process has open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(re.sub(r"\d+", "N", os.readlink(entry)))
    return found


def memory_of(pid):
    """What a process can write of its memory."""
    pieces = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(begin)
                    pieces.append(memory.read(end - begin))
    return b"".join(pieces)


SAME = (
    ["ps", "--host", "A", "--json", "--state", "nonsense"],
    ["ps", "--host", "nowhere"],
    ["logs", "nothing-like-it"],
    ["stop"],
    ["ps", "--no-such-option"],
    ["run", "--help"],
    ["--host", "A", "--", "sh", "-c", "echo said; exit 3"],
)


def test_it_ends_and_says_what_it_does_by_itself(terminal):
    """Exit code, output and errors, but for ids and times."""

    def same(done):
        code, out, err = done
        return code, *(re.sub(r"\d{6}-\S+|\b[a-z0-9]{6}\b|\d+\.\d+|\d+", "#", text) for text in (out, err))

    for words in SAME:
        by_itself = terminal.run(*words, before="setsid -w")
        assert same(terminal.run(*words)) == same(by_itself), words


def test_it_loads_nothing_that_the_process_that_stands_by_has_loaded(terminal):
    """The process in which it was typed has no module of the commands in its memory: pydantic's library is not mapped there."""
    command = terminal.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 600")
    until(lambda: "begun" in command.out, "the run's begin")
    fork = terminal.fork()
    assert "pydantic" in Path(f"/proc/{fork}/maps").read_text()
    assert "pydantic" not in Path(f"/proc/{command.pid}/maps").read_text()
    assert terminal.state()["users"] == 1
    terminal.run("stop", "--now", "--yes", "last")
    code, _, _ = command.end()
    assert code == 1
    until(lambda: terminal.state()["users"] == 0, "the end of the fork")


def test_a_signal_does_what_it_does_to_a_command_by_itself(terminal):
    """Ctrl-C leaves a run that is followed, and says how to come back; the run goes on."""
    run = "--host", "A", "--detach", "--", "sh", "-c", "while :; do echo goes on; sleep 1; done"
    assert terminal.run(*run)[0] == 0
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 143)):
        command = terminal.start("attach", "last", before="env --default-signal")
        until(lambda command=command: "goes on" in command.out, "the run's output")
        fork = terminal.fork()
        command.signal(number)
        ended, _, err = command.end()
        assert ended == code, number
        assert "attach" in err
        until(lambda fork=fork: is_gone(fork), "the end of the fork")
    assert json.loads(terminal.run("ps", "--host", "A", "--json")[1])["runs"][0]["state"] == "running"
    terminal.run("stop", "--now", "--yes", "last")


def test_a_command_that_is_killed_ends_its_fork_and_not_the_run(terminal):
    """As the process would have ended in which it was typed."""
    command = terminal.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 600")
    until(lambda: "begun" in command.out, "the run's begin")
    fork = terminal.fork()
    command.signal(signal.SIGKILL)
    until(lambda: is_gone(fork), "the end of the fork")
    assert json.loads(terminal.run("ps", "--host", "A", "--json")[1])["runs"][0]["state"] == "running"
    terminal.run("stop", "--now", "--yes", "last")


def test_ctrl_z_stops_both_and_fg_continues_both(terminal):
    """A shell stops and continues only the process that it knows."""
    own_group = (
        f"{sys.executable} -c 'import os, sys; os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])'"
    )
    command = terminal.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 600", before=own_group)
    until(lambda: "begun" in command.out, "the run's begin")
    fork = terminal.fork()
    command.signal(signal.SIGTSTP)
    until(lambda: state_of(command.pid) == "T" and state_of(fork) == "T", "that both are stopped")
    command.signal(signal.SIGCONT)
    until(lambda: "T" not in (state_of(command.pid), state_of(fork)), "that both go on")
    terminal.run("stop", "--now", "--yes", "last")
    assert command.end()[0] == 1


def test_a_fork_that_is_killed_is_said_to_have_broken_off(terminal):
    """Nothing is claimed of a command whose end nobody knows."""
    command = terminal.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 600")
    until(lambda: "begun" in command.out, "the run's begin")
    os.kill(terminal.fork(), signal.SIGKILL)
    code, _, err = command.end()
    assert (code, err.splitlines()[-2:]) == (
        1,
        ["the process that ran this command has broken off", "  what it has done   launch ps"],
    )
    terminal.run("stop", "--now", "--yes", "last")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_an_answer_a_command_runs_by_itself(terminal, number):
    """A process that was killed refuses. One that was stopped is asked once, and then killed."""
    pid, fork = terminal.standby(), terminal.waiting()
    os.kill(pid, number)
    assert terminal.run("ps", "--host", "A")[0] == 0
    until(lambda: is_gone(pid) and is_gone(fork), "the end of both")
    assert terminal.run("ps", "--host", "A")[0] == 0
    assert terminal.standby() != pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_runs_though_the_fork_that_waits_for_it_does_not(terminal, number):
    """Nobody waits for it for ever, it counts for nothing, and none is left behind."""
    pid, fork = terminal.standby(), terminal.waiting()
    os.kill(fork, number)
    for _ in range(2):
        code, out, err = terminal.run("ps", "--host", "A")
        assert (code, "STATE" in out or "no runs" in out, err) == (0, True, "")
    if number == signal.SIGKILL:
        until(lambda: terminal.state()["users"] == 0, "the end of what ran the commands")
        assert terminal.waiting() != fork
    else:
        until(lambda: is_gone(fork) and is_gone(pid), "the end of both")


def test_the_fork_that_waits_ends_with_its_parent(terminal):
    """However that ends."""
    pid, fork = terminal.standby(), terminal.waiting()
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(fork), "the end of the fork that waited")


UNLIKE = (
    "sh -c 'umask 027; exec \"$@\"' sh",
    "sh -c 'ulimit -n 512; exec \"$@\"' sh",
    "env LC_ALL=POSIX",
    "nice -n 5",
    "env PYTHONWARNINGS=ignore",
    "unshare --uts",
)
"""What a fork cannot take over."""


@pytest.mark.parametrize("count", [0, 1])
def test_a_process_that_differs_runs_its_command_itself(terminal, count):
    """By the count of what was handed over, beside commands that differ in nothing, or in what comes along."""
    alike = ("env A_VARIABLE=of-mine", "sh -c 'cd /; exec \"$@\"' sh")
    for before in alike if count else UNLIKE:
        command = terminal.start("ps", "--watch", before=before)
        until(lambda command=command: command.out, "a list")
        assert terminal.state()["users"] == count, before
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 143
        until(lambda: terminal.state()["users"] == 0, "the end of its fork")


@pytest.mark.parametrize("clock", [lambda: 0, lambda: time.time() + 3600], ids=["old", "set back"])
def test_one_that_would_not_have_the_last_command_is_replaced(terminal, clock):
    """The next ones are most like that: of two, the second is handed over."""
    before, pid = "env LC_ALL=POSIX", terminal.standby()
    assert terminal.run("ps", "--host", "A", before=before)[0] == 0
    assert not is_gone(pid)  # it is as good as new
    when = clock()
    os.utime(terminal.standbys()[0], (when, when))
    assert terminal.run("ps", "--host", "A", before=before)[0] == 0
    until(lambda: is_gone(pid) and terminal.standbys(), "another process that stands by")
    command = terminal.start("ps", "--watch", before=before)
    until(lambda: terminal.state()["users"] == 1, "that it is handed over")
    command.signal(signal.SIGTERM)
    assert command.end()[0] == 143


def test_a_second_one_for_the_same_session_ends_at_once_and_leaves_no_mark(terminal):
    """Two commands that end together may each leave one."""
    pid = terminal.standby()
    (path,) = terminal.standbys()
    mark = path.with_name("opening-second")
    mark.touch()
    order = standbys.Order(int(path.name.rpartition("-")[2]), HELD_S, [], [])
    words = [sys.executable, "-P", "-c", standbys._PROGRAM, "", str(mark)]
    said = json.dumps(order._asdict()).encode()
    subprocess.run(words, input=said, env={**os.environ, **terminal.client.variables}, check=True, timeout=60)
    assert not mark.exists()
    assert terminal.standby() == pid


def test_nothing_is_left_of_one_that_was_killed(terminal):
    """Neither its socket, nor a mark of one that had not begun to listen."""
    (path,) = terminal.standbys()
    mark = path.with_name("opening-killed")
    mark.touch()
    os.kill(terminal.standby(), signal.SIGKILL)
    terminal.client.ok("hosts", "--close")
    assert sorted(path.parent.iterdir()) == []


def test_the_next_one_takes_away_what_one_left_that_was_killed(terminal):
    """Also if nobody ever closes anything."""
    pid, (path,) = terminal.standby(), terminal.standbys()
    mark = path.with_name("opening-killed")
    mark.touch()
    os.kill(pid, signal.SIGKILL)
    assert terminal.run("ps", "--host", "A")[0] == 0
    assert terminal.standby() != pid
    assert not mark.exists()


SECRET = (
    *("INVOKE_SUDO_PASSWORD", "LD_ACCESS_TOKEN", "PYDANTIC_AI_GATEWAY_API_KEY", "TYPER_TOKEN", "XDG_TOKEN"),
    *("PYTHON_KEYRING_PASSWORD", "LC_TOKEN", "MALLOC_TOKEN"),
)
"""Names that begin as those of libraries do."""


def test_it_gets_no_variable_that_may_be_a_secret(terminal):
    """And commands that have one are handed over all the same."""
    terminal.client.ok("hosts", "--close")
    before = "env " + " ".join(f"{name}=hunter2" for name in SECRET)
    for _ in range(2):
        assert terminal.run("ps", "--host", "A", before=before)[0] == 0
        until(lambda: json.loads(terminal.client.ok("hosts", "--json"))["connections"], "a held connection")
    (held,) = json.loads(terminal.client.ok("hosts", "--json"))["connections"]
    for pid in (terminal.standby(), terminal.waiting(), held["pid"]):
        assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
    command = terminal.start("ps", "--watch", before=before)
    until(lambda: terminal.state()["users"] == 1, "that it is handed over")
    command.signal(signal.SIGTERM)
    assert command.end()[0] == 143


@pytest.mark.parametrize("setting", ["LD_LIBRARY_PATH=/usr/lib", "MALLOC_ARENA_MAX=2", "LC_ALL=POSIX"])
def test_it_has_the_variables_by_which_commands_are_told_apart(setting):
    """Otherwise it would refuse each command, and be replaced each time."""
    name, _, value = setting.partition("=")
    assert taken_command._settled([setting.encode()]) == {setting.encode()}
    assert background._VARIABLES.fullmatch(name), value


def core_limit_of(pid):
    """The soft limit of a process's core dumps."""
    return re.search(r"Max core file size +(\w+)", Path(f"/proc/{pid}/limits").read_text())[1]


def test_a_command_that_was_handed_over_leaves_no_core_dump(terminal, tmp_path):
    """SIGQUIT ends the process in which it was typed, and the one that runs it, and both have its variables."""
    folder = tmp_path / "cores"
    folder.mkdir()
    before = f"sh -c 'cd {folder}; ulimit -c unlimited; exec \"$@\"' sh env --default-signal A_SECRET_OF_MINE=hunter2"
    for is_fork in (True, False):
        command = terminal.start("ps", "--watch", before=before)
        until(lambda command=command: command.out, "a list")
        fork = terminal.fork()
        assert b"hunter2" in Path(f"/proc/{command.pid}/environ").read_bytes()
        assert {core_limit_of(pid) for pid in (command.pid, fork)} == {"1"}
        os.kill(fork if is_fork else command.pid, signal.SIGQUIT)
        assert command.end()[0] != 0
        until(lambda fork=fork: is_gone(fork), "the end of the fork")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-s", "A_KEY"],
        ["-vsA_KEY"],
        ["--secret=A_KEY"],
        ["--env-file", "some.env"],
        ["--set", 'secrets=["A_KEY"]'],
        ["on_end"],
        ["--job", "own.toml"],
    ],
    ids=lambda words: " ".join(words),
)
def test_a_launch_with_secrets_runs_where_it_was_typed(terminal, words):
    """Whichever way it names them: the process that stands by runs none of its commands."""
    project, command = terminal.client.project, ["--", "sh", "-c", "echo begun; sleep 600"]
    (project / "some.env").write_text("A_KEY=value-of-it")
    if words == ["on_end"]:
        file, words = project / "launch.toml", []
        file.write_text('on_end = "$A_KEY"\n' + file.read_text())
    elif words[0] == "--job":
        text = 'name = "own"\ncommand = ["sh", "-c", "echo begun; sleep 600"]\nsecrets = ["A_KEY"]\n'
        (project / "own.toml").write_text(text)
        command = []
    started = terminal.start("--host", "A", *words, *command, before="env A_KEY=value-of-it")
    until(lambda: "begun" in started.out, "the run's begin")
    assert (terminal.forks(), terminal.state()["users"]) == ([], 0)
    terminal.run("stop", "--now", "--yes", "last")
    assert started.end()[0] == 1


def test_it_keeps_nothing_of_a_command(terminal):
    """No variable, no file, no folder: they were the fork's."""
    pid = terminal.standby()
    before = open_files(pid)
    assert terminal.run("ps", "--host", "A", before="env A_SECRET_OF_MINE=hunter2")[0] == 0
    assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes() + memory_of(pid)
    assert b"hunter2" not in memory_of(terminal.waiting())
    until(lambda: open_files(pid) == before, "that its fork is forgotten")
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert not [name for name in before if str(terminal.client.project) in name]


def test_it_ends_with_its_session(terminal):
    """Who has left the terminal types nothing there."""
    pid = terminal.standby()
    terminal.leave()
    until(lambda: is_gone(pid), "the end of the process that stood by")
    assert terminal.standbys() == []


def test_it_ends_when_something_was_installed(terminal, packages):
    """What it has loaded is old then."""
    pid = terminal.standby()
    assert terminal.run("ps", "--host", "A")[0] == 0
    assert not is_gone(pid)
    (packages / "new.py").write_text("")
    assert terminal.run("ps", "--host", "A")[0] == 0
    until(lambda: is_gone(pid), "its end")


def test_hosts_ends_one_that_is_stopped(terminal):
    """It is killed, for it does not answer."""
    pid = terminal.standby()
    os.kill(pid, signal.SIGSTOP)
    assert "the process that stood by for the next command has ended" in terminal.client.ok(
        "hosts", "--close"
    )
    assert is_gone(pid)


def test_it_ends_when_something_was_installed_during_a_command(terminal, packages):
    """Although it has loaded more after that command than before."""
    pid = terminal.standby()
    command = terminal.start("--host", "A", "--", "sh", "-c", "echo begun; sleep 600")
    until(lambda: "begun" in command.out, "the run's begin")
    (packages / "new.py").write_text("")
    assert terminal.run("stop", "--now", "--yes", "last", before="setsid -w")[0] == 0
    assert command.end()[0] == 1
    assert terminal.run("ps", "--host", "A")[0] == 0
    until(lambda: is_gone(pid), "its end")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_without_input_output_or_errors_runs_by_itself(terminal, closed):
    """What it opens would get their numbers."""
    assert terminal.run("--host", "A", "--", "true", after=closed)[0] == 0


def test_a_command_that_is_killed_while_it_is_stopped_ends_its_fork(terminal):
    """A process that is stopped cannot see that."""
    command = terminal.start("ps", "--watch")
    fork = terminal.fork()
    os.kill(fork, signal.SIGSTOP)
    command.signal(signal.SIGKILL)
    until(lambda: is_gone(fork), "the end of the fork")


def test_a_program_gets_the_limit_of_core_dumps_of_its_command(client, terminal):
    """It is changed only for our own processes."""
    ask = "sh", "-c", "ulimit -S -c"
    limited = "sh -c 'ulimit -S -c 0; exec \"$@\"' sh"
    for before in ("", limited):
        by_itself = terminal.run("--", *ask, before=f"setsid -w {before}")
        assert terminal.run("--", *ask, before=before)[:2] == by_itself[:2]


def test_an_error_that_cannot_be_written_has_the_usual_exit_code(terminal):
    """Python's, for what was left to write."""
    words = "ps", "--host", "nowhere"
    by_itself = terminal.run(*words, before="setsid -w", after="2>/dev/full")[0]
    assert terminal.run(*words, after="2>/dev/full")[0] == by_itself


def test_ctrl_c_before_it_has_begun_ends_the_command(client, tmp_path, monkeypatch):
    """The fork dies of it before it hears that it is to begin, and nothing begins here either."""
    sockets = Path(tempfile.mkdtemp(prefix="launch-standby-"))
    client.variables["XDG_RUNTIME_DIR"] = str(sockets)
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, client.env[name])
    folder = Path(user_sockets.folder())
    folder.mkdir(mode=0o700)
    session = Session(client, tmp_path)
    fork = subprocess.Popen(["sleep", "60"])
    with contextlib.ExitStack() as files:
        listener = files.enter_context(socket.socket(socket.AF_UNIX))
        umask = os.umask(0o177)
        listener.bind(str(folder / f"standby-{session.shell.pid}"))
        os.umask(umask)
        listener.listen()
        command = session.start("ps", before="env --default-signal")
        stream, _ = listener.accept()
        files.enter_context(stream)
        os.kill(command.pid, signal.SIGSTOP)
        stream.shutdown(socket.SHUT_RD)  # its word to begin fails
        stream.sendall(b"%d\n" % fork.pid)
        os.kill(command.pid, signal.SIGINT)
        os.kill(command.pid, signal.SIGCONT)
        code, out, err = command.end()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    fork.kill()
    fork.wait()
    session.leave()
    shutil.rmtree(sockets)


def test_hosts_shows_and_ends_it(terminal):
    """With its process and for how long."""
    pid = terminal.standby()
    shown = terminal.client.ok("hosts")
    assert re.search(rf"- +stands by for the next command +\d+ s +{pid}\n", shown)
    assert "the process that stood by for the next command has ended" in terminal.client.ok(
        "hosts", "--close"
    )
    until(lambda: is_gone(pid), "its end")
    assert terminal.standbys() == []


@pytest.mark.parametrize(
    ("words", "is_usual"),
    [
        (["ps"], True),
        (["--host", "lab", "--", "true"], True),
        ([], False),
        (["shell", "last"], False),
        (["rm", "last"], False),
        (["run", "--env-file", "/dev/fd/63"], False),
        (["--", "cat", "/proc/self/status"], False),
    ],
)
def test_what_is_handed_over(monkeypatch, words, is_usual):
    """Verbs that are usual, and never one that names what only its own process has, nor a job's file, which may name secrets."""
    monkeypatch.delenv("_LAUNCH_COMPLETE", raising=False)
    monkeypatch.setattr(handing_over, "_has_usual_files", lambda: True)
    assert handing_over._is_usual(words) is is_usual


def test_two_processes_are_alike_or_not():
    """A fork is like its parent until it changes something."""
    ours = traits(os.getpid())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os.nice(3)
        os.read(reading, 1)
        os._exit(0)
    assert traits(child) == ours
    os.write(writing, b"x")
    until(lambda: traits(child) != ours, "that it differs")
    os.write(writing, b"x")
    os.waitpid(child, 0)
