"""What standard output and standard error are: letters that they lack, a reader that leaves, a full disk, Ctrl-C, colours."""

import os
import shlex
import subprocess
import sys

import pytest
from testbed.client import LAUNCH
from testbed.pty_run import in_terminal
from testbed.tables import mostly_long

INTERRUPTED = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
from launcher.cli import main
sys.meta_path.insert(0, Interrupts())
sys.argv = ["launch", *{words!r}]
main()
"""


def by_shell(client, command, **variables):
    """Run a line of a shell in which LAUNCH is our command."""
    return subprocess.run(
        ["sh", "-c", command.replace("LAUNCH", shlex.join(LAUNCH))],
        cwd=client.project,
        env={**client.env, **variables},
        capture_output=True,
        check=False,
        timeout=60,
    )


@mostly_long("encoding", ["latin-1", "ascii", "cp437"], ci=(1,))
def test_letters_that_an_encoding_lacks_have_a_twin(client, encoding):
    """A launch and a listing, from stages to the end: no traceback, and few question marks."""
    client.script("import sys\nsys.stdout.buffer.write('größe → 語\\n'.encode())\n")
    done = by_shell(client, "LAUNCH -- python train.py; LAUNCH ps", PYTHONIOENCODING=encoding)
    said = (done.stderr + done.stdout).decode(encoding)
    assert "Traceback" not in said
    assert "UnicodeEncodeError" not in said
    assert "succeeded" in said
    assert "+ succeeded" in said
    printed = "größe -> ?"
    assert printed.encode(encoding, "replace").decode(encoding) in said


def test_a_reader_that_leaves_ends_the_command_quietly(client):
    """As `head` does; also where it has left before the first line."""
    for reader in ("head -1", "true"):
        done = by_shell(client, f"LAUNCH profile list | {reader}")
        assert done.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["--help", "profile list", "ps", "image show --profile titan_rtx"])
def test_output_that_cannot_be_written_is_told(client, words):
    """A full disk is an error, in one line."""
    done = by_shell(client, f"LAUNCH {words} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.decode() == "standard output: No space left on device\n"


@mostly_long("words", ["--help", "profile list", "ps", "-- true"], ci=(0, 3))
def test_closed_streams_change_nothing(client, words):
    """`>&-` and `2>&-`: as from a daemon."""
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = by_shell(client, f"LAUNCH {words} {closed}")
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def interrupted(client, name, *words, **variables):
    """Run our command with a Ctrl-C at the moment when it loads a module."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(name=name, words=list(words))],
        cwd=client.project,
        env={**client.env, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("typer", ["ps"]),
        ("launcher.cli.app", ["ps"]),
        ("launcher.errors", ["--help"]),
        ("launcher.runs.run_listing", ["ps"]),
        ("packaging.requirements", ["image", "show", "--profile", "titan_rtx"]),
        ("launcher.transport.client.host_client", ["probe"]),
    ],
)
def test_ctrl_c_has_no_traceback_while_modules_load(client, name, words):
    """It ends the process as a shell expects it."""
    done = interrupted(client, name, *words)
    assert done.returncode in (130, -2)
    assert done.stderr == ""


LOST = """
import sys, threading, weakref
from launcher.cli import app, main
def work():
    class Thing: pass
    thing = Thing()
    def cb(_):
        import signal
        signal.raise_signal(signal.SIGINT)
    kept = weakref.ref(thing, cb)
    del thing
    threading.Event().wait(20)
app.main = work
main()
"""


def test_ctrl_c_in_a_callback_is_not_lost():
    """Python raises nothing out of one, as an import has, and would print a traceback and go on."""
    done = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (130, -2)
    assert done.stderr == ""


WRAPPED = """
from pydantic_core import SchemaValidator
from launcher.cli import app, main
class Meta(type):
    @property
    def __name__(cls): raise KeyboardInterrupt
class Model(metaclass=Meta): pass
app.main = lambda: SchemaValidator({"type": "model", "cls": Model, "schema": {"type": WHAT}})
main()
"""


@pytest.mark.parametrize(("what", "status"), [("'int'", 130), ("'no such type'", 1)])
def test_ctrl_c_while_pydantic_builds_a_model_has_no_traceback(what, status):
    """Pydantic makes an error of its own of it. Any other error of its is a bug, and is shown."""
    words = [sys.executable, "-c", WRAPPED.replace("WHAT", what)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert ("Traceback" in done.stderr) == (status == 1)


LATE = """
import atexit, sys, threading, time
from launcher.cli import app, main
class Kept:
    def __del__(self): print("taken apart")
def late():
    time.sleep(0.2)
    print("of a thread")
def work():
    vars(app)["kept"] = Kept()
    atexit.register(print, "of the end")
    threading.Thread(target=late).start()
    sys.exit(CODE)
app.main = work
main()
"""


@pytest.mark.parametrize(("code", "status", "last"), [("3", 3, ""), ("'why'", 1, "taken apart\n")])
def test_a_command_ends_when_all_is_done_and_takes_nothing_apart(code, status, last):
    """What threads and modules still have to do is done, and reaches a pipe; the exit code stays. Words for it are Python's to print."""
    words = [sys.executable, "-c", LATE.replace("CODE", code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert done.stdout == "of a thread\nof the end\n" + last


@pytest.mark.parametrize("name", ["typer", "launcher.cli.app", "launcher.copy.known_runs"])
def test_ctrl_c_after_tab_shows_nothing(client, name):
    """A shell would print it into the line that is being typed."""
    asked = {"_LAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": "launch\nattach\n", "COMP_CWORD": "2"}
    done = interrupted(client, name, **asked)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == -2


def test_colours_are_by_the_terminal_unless_they_are_asked_for(client):
    """`--color`, NO_COLOR and FORCE_COLOR; a pipe with colours is still no terminal: nothing is cut or redrawn."""
    client.ok("--", "true")
    plain = client.ok("ps")
    assert "\x1b" not in plain
    assert "\x1b[" in in_terminal(client, "ps", columns=100)
    assert "\x1b" not in in_terminal(client, "ps", "--color", "never", columns=100)
    for forced in (
        client.ok("ps", "--color", "always"),
        by_shell(client, "LAUNCH ps", NO_COLOR="", FORCE_COLOR="1").stdout.decode(),
    ):
        assert "\x1b[" in forced
        assert forced.count("\n") == plain.count("\n")
    assert "\x1b" not in by_shell(client, "LAUNCH ps", NO_COLOR="1", FORCE_COLOR="1").stdout.decode()


def test_verbose_shows_the_requests_on_standard_error(client):
    """Data stay as they are."""
    done = client.run("ps", "--host", "local", "--json", "-v")
    assert "local: runs took" in done.stderr or "local: connected in" in done.stderr
    assert done.stdout.startswith("{")
    assert "took" not in client.run("ps", "--host", "local", "--json").stderr
