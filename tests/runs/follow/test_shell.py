"""`launch shell`: a shell on a terminal beside a run, typed into on a real pty. What is left of it is asked of /proc."""

import contextlib
import hashlib
import os
import secrets
import signal
import subprocess
import sys

import pytest
from testbed.client import LAUNCH, marked, until
from testbed.kept import Kept
from testbed.screen import Screen

pytestmark = pytest.mark.slow(reason="each test starts clients and a run")

SLEEPS = "sh -c 'sleep 600; true'"


@contextlib.contextmanager
def shell(client, *words, width=200, height=27):
    """`launch shell` with its prompt on the screen: `$`, or `#` for root."""
    env = {**client.env, "SHELL": "/bin/bash", "TERM": "xterm-256color"}
    with Screen([*LAUNCH, "shell", *words], env, client.project, width, height) as screen:
        yield screen


def is_ready(lines):
    return lines[-1].rstrip().endswith(("#", "$"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A client that has a run on this machine that has ended, and its id."""
    made = Kept(tmp_path_factory.mktemp("ended"))
    run = made.client.detached("--", "true")
    made.keep()
    return made, run


@pytest.fixture
def ended(client, kept):
    """A run of the client on this machine that has ended; its id."""
    made, run = kept
    made.give(client)
    return run


def test_it_is_a_terminal_of_the_same_kind_and_size_where_the_run_stands(client, ended):
    """Programs of the run come first, even where the user's start-up file puts others first; Ctrl-C is for the program."""
    (client.home / ".bashrc").write_text("PATH=$HOME/bin:$PATH; alias hello='echo well-read'\n")
    (client.home / "bin").mkdir()
    (client.home / "bin" / "python").symlink_to("/bin/false")
    with shell(client, ended) as screen:
        before = screen.settings()
        screen.until(is_ready)
        screen.type("stty size; echo $TERM $LAUNCH_RUN; pwd; which python; hello\n")
        lines = screen.until(lambda lines: "well-read" in lines and is_ready(lines))
        assert lines[-6] == "27 200"
        assert lines[-5] == f"xterm-256color {ended}"
        assert lines[-4] == str(client.home / ".launch" / "runs" / ended / "work" / "code")
        assert lines[-3] == os.path.join(os.path.dirname(sys.executable), "python")
        # The program itself says that it runs: a Ctrl-C just before it has the terminal would be the shell's.
        screen.type("sh -c 'echo sleeps-$((6 * 7)); exec sleep 600'\n")
        screen.until(lambda lines: "sleeps-42" in lines)
        screen.type("\x03")
        screen.until(lambda lines: "^C" in "".join(lines) and is_ready(lines))
        screen.type("echo ended with $?\n")
        screen.until(lambda lines: "ended with 130" in lines)
        screen.resize(63, 18)
        screen.type("sleep 0.3; stty size\n")
        screen.until(lambda lines: any("18 63" in line for line in lines))  # on a line being redrawn, or not
        screen.type("exit 7\n")
        screen.to_the_end()
        assert screen.process.returncode == 7
        assert screen.settings() == before


def test_a_command_has_the_terminal_too_and_gets_every_byte(client, ended):
    """`-- COMMAND`: its exit code, a long paste whole, control characters as typed."""
    paste = "".join(secrets.choice("abc é\n\t\x04") for _ in range(150_000))
    program = (
        "import hashlib, os, sys, tty; tty.setraw(0); assert os.isatty(1); print('now', flush=True); data = b''\n"
        f"while len(data) < {len(paste.encode())}: data += os.read(0, 4096)\n"
        "print(hashlib.sha256(data).hexdigest()); sys.exit(3)"
    )
    with shell(client, ended, "--", "python", "-c", program) as screen:
        screen.until(lambda lines: "now" in lines[-1])
        screen.type(paste)
        screen.to_the_end()
        assert hashlib.sha256(paste.encode()).hexdigest().encode() in screen.raw
        assert screen.process.returncode == 3


@pytest.mark.parametrize(
    ("place", "how"),
    [
        pytest.param("local", "left", marks=pytest.mark.long),
        pytest.param("local", "killed", marks=pytest.mark.long),
        pytest.param("A", "left", marks=[pytest.mark.testbed, pytest.mark.long]),
        pytest.param("A", "cut", marks=pytest.mark.testbed),
    ],
)
def test_what_was_started_in_it_ends_with_it(client, place, how, request):
    """A background job, and one without the terminal; when the shell is left, the client dies, or the link is cut."""
    lab = request.getfixturevalue("lab") if place == "A" else None
    run = client.detached("--host", place, "--", "true")
    mark = secrets.token_hex(8)
    with shell(client, run) as screen:
        before = screen.settings()
        screen.until(is_ready)
        screen.type(
            "python -c 'print(6 * 7, \"is said\")'\n"
        )  # `python` is the run's, whatever its file is called
        screen.until(lambda lines: "42 is said" in lines)
        screen.type(f"{SLEEPS} {mark} &\n")
        screen.type(f"nohup setsid {SLEEPS} {mark} >/dev/null 2>&1 &\n")
        screen.until(lambda _lines: len(marked(mark)) == 2)
        if how == "killed":
            screen.process.send_signal(signal.SIGKILL)
        elif how == "cut":
            lab.cut()
        else:
            screen.type("exit\n")
            screen.type("exit\n")  # a shell warns of its jobs
        screen.to_the_end()
        assert screen.process.returncode == {"left": 0, "killed": -9, "cut": 4}[how]
        if how != "killed":
            assert screen.settings() == before
        assert b"Traceback" not in screen.raw
    until(lambda: marked(mark) == [], "the end of what was started in it")


def test_it_has_no_secrets_and_leaves_no_mark_in_the_record(client):
    """The run's token of the hub is not among the variables of the shell; the record is as it was."""
    value = secrets.token_hex(12)
    client.variables["HUB_TOKEN"] = value
    run = client.detached("--secret", "HUB_TOKEN", "--", "true")
    record = client.home / ".launch" / "runs" / run / "record"
    client.ok("attach", run)
    before = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    with shell(client, run) as screen:
        screen.until(is_ready)
        screen.type('env | grep -c -e HUB_TOKEN -e LAUNCH_SOCKET; echo "seen$?"; exit\n')
        screen.to_the_end()
    assert b"seen1" in screen.raw
    assert value.encode() not in screen.raw
    assert before == {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}


def test_without_a_terminal_it_says_what_to_type(client, ended):
    """Exit code 2, with input or output elsewhere, before the host is asked."""
    for words in ([], ["--", "true"]):
        done = client.run("shell", ended, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "launch exec RUN -- COMMAND" in done.stderr
    done = client.run("shell", ended, "htop")
    assert (done.returncode, f"launch shell {ended} -- htop" in done.stderr) == (2, True)


@pytest.mark.long
def test_a_program_that_is_not_there_is_told_as_by_a_shell(client, ended):
    """Exit code 127, and the terminal is as it was."""
    with shell(client, ended, "--", "no-such-program") as screen:
        before = screen.settings()
        lines = screen.to_the_end()
        assert (screen.process.returncode, screen.settings()) == (127, before)
    assert any("no-such-program" in line for line in lines)


def test_a_window_of_any_size_is_a_window():
    """What a client says of its size is data: it is brought into bounds."""
    program = (
        "import os; from launcher.agent.system.terminal import Terminal, Window\n"
        "for size in (0, 0), (-1, 10**9):\n"
        "    terminal = Terminal(Window(*size)); print(*os.get_terminal_size(terminal.program_end)); terminal.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "65535", "1"]
