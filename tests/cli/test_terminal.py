"""What reaches a person's terminal: no escape of a host's, a cursor that is there in the end, and a whole log."""

import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from rich.console import Console
from rich.text import Text
from testbed.client import LAUNCH, processes_of, until
from testbed.pty_run import in_terminal
from testbed.tables import mostly_long
from typer import Exit

from launcher.cli.follow import follow
from launcher.cli.follow.log_view import LogView
from launcher.cli.follow.terminal_view import TerminalView
from launcher.cli.output.say import say, without_escapes
from launcher.cli.output.wrapping import wrapped_lines
from launcher.copy.local_copy import LocalCopy
from launcher.copy.record_sync import News
from launcher.errors import AgentError
from launcher.runs.follow.view import Result
from launcher.runs.launch.hook_note import HOOK_NOTE
from launcher.transport.client.host_client import HostClient
from launcher.values.record import PlanSummary, RunState

pytestmark = pytest.mark.slow(reason="each test starts a client on a terminal and a run")

EVIL = "\x1b]0;title\x07\x1b[2J\x9b2J\u202eevil\u2066"
STEERS = ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2066")


def steering(said):
    """What steers a terminal in what was said; not the bell, which is ours and last."""
    return [steer for steer in STEERS if steer in said.removesuffix("\x07")]


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

HOSTILE = f"""
import os, sys
import launcher_worker as worker
EVIL = {EVIL!r}
sys.stdout.reconfigure(encoding="utf-8")
print("printed", EVIL, flush=True)
worker.begin(0, 3)
worker.progress(EVIL, 1, 2)
worker.log(1, loss=0.5)
worker.log(2, **{{EVIL: 0.25, "text": EVIL}})
open(os.path.join(worker.knobs().artifacts, EVIL), "w").close()
sys.exit(3)
"""


def controls(text):
    """The characters that no verb may let through when it writes into a pipe."""
    return sorted({char for char in text if not char.isprintable()} - {"\n", "\t"})


class Terminal:
    """`launch …` in a terminal of its own, and what it has written there."""

    def __init__(self, client, *words):
        ours, theirs = pty.openpty()
        env = {**client.env, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [*LAUNCH, *words],
            cwd=client.project,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            process_group=0,  # as a shell's job
        )
        os.close(theirs)
        self._file = ours
        self._said = b""

    def said(self):
        """Take what is written next; everything so far."""
        self._said += os.read(self._file, 1 << 16)
        return self._said.decode("utf-8", "replace")

    def to_the_end(self):
        """Everything, when the command has left."""
        try:
            while True:
                self.said()
        except OSError:  # how Linux says that the other end is closed
            os.close(self._file)
        self.process.wait(timeout=180)
        return self._said.decode("utf-8", "replace")


@pytest.fixture
def hostile(client):
    """A run whose script prints and reports escapes, and whose record on the host was forged to hold more; its id."""
    client.script(HOSTILE)
    os.symlink("/etc/passwd", client.project / f"link{EVIL}")
    done = client.run("--", "python", "train.py")
    assert done.returncode == 1
    assert controls(done.stdout + done.stderr) == []
    assert "printed" in done.stdout
    assert "not sent: link" in done.stderr
    (folder,) = (client.home / ".launch" / "runs").iterdir()
    state = folder / "record" / "0002" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "reason": EVIL, "evidence": {EVIL: EVIL}}))
    plan = json.loads((folder / "control" / "plan.json").read_text())
    plan.update(job=EVIL, profile={**plan["profile"], "title": EVIL})
    (folder / "control" / "plan.json").write_text(json.dumps(plan))
    shutil.rmtree(client.runs)
    return folder.name


VERBS = {
    "attach RUN": "evil",
    "attach RUN --json": "evil",
    "logs RUN": "printed",
    "metrics RUN": "evil",
    "metrics RUN --csv": "evil",
    "metrics RUN --json": "evil",
    "ps": "evil",
    "ps --json": "evil",
    "pull RUN": "its name has control characters",
    "ls RUN": "evil",
    "ls RUN --json": "evil",
    "pull RUN --all --json": "checkpoints",
    "stop RUN": "evil",
    "stop RUN --json": "evil",
}


@pytest.mark.long
def test_no_escape_of_a_run_passes_any_verb(client, hostile):
    """Neither into a pipe, where nothing steers, nor into a terminal, where rich's own do."""
    for verb, shows in VERBS.items():
        words = [*verb.replace("RUN", hostile).split(), "--host", "local"]
        done = client.run(*words)
        assert shows in done.stdout + done.stderr, verb
        assert controls(done.stdout + done.stderr) == [], verb
        said = Terminal(client, *words).to_the_end()
        assert shows in said, verb
        assert steering(said) == [], verb


def test_a_terminal_is_asked_which_run_last_is_and_about_checkpoints(client):
    """No is the default, and nothing happens then; yes goes on, with the loss of nothing but checkpoints."""
    client.script(
        "import os, launcher_worker as w\nw.resume_from()\nw.log(1, loss=1.0)\n"
        "w.save(1, lambda folder: open(os.path.join(folder, 'w'), 'w').write('x'))\nw.done(1)\n"
    )
    run = client.detached("--", "python", "train.py")
    until(lambda: client.summary(run)["state"] == "succeeded", "its end")
    folder = client.home / ".launch" / "runs" / run
    refused = client.run("rm", run)
    assert (refused.returncode, "exist only on local" in refused.stderr) == (1, True)
    for answers, code, stays in (([""], 1, True), (["y", ""], 1, True), (["y", "y"], 0, False)):
        terminal = Terminal(client, "rm", "last")
        for number, answer in enumerate(answers, 1):
            until(lambda t=terminal, n=number: t.said().count("continue?") == n, "the question")
            os.write(terminal._file, answer.encode() + b"\n")
        said = terminal.to_the_end()
        assert f"last is {run}" in said
        assert ("only checkpoints would be lost" in said) == (len(answers) == 2)
        assert (terminal.process.returncode, folder.exists()) == (code, stays), said


BURST = """
import sys, time
print("\\x1b[1mfirst\\x1b[0m", flush=True)
for share in range(0, 101, 20):
    print(f"\\rloading {share}%", end="", flush=True)
    time.sleep(0.05)
print()
print("\\n".join(f"line {number}" for number in range(5000)))
print("the end", end="")
"""


def test_a_terminal_shows_what_is_printed_and_thins_a_burst_and_a_pipe_shows_all(client):
    """The first lines, a count with the command that shows all, the last lines; a bar's last state. Stages are in neither `logs` nor the pipe."""
    client.script(BURST)
    said = Terminal(client, "--", "python", "train.py").to_the_end()
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).splitlines()]
    run = next(client.runs.glob("[0-9]*")).name
    everything = ["first", "loading 100%", *(f"line {number}" for number in range(5000)), "the end"]
    assert any(line.endswith(f" more lines   launch logs {run[-6:]} shows all") for line in lines)
    shown = [line for line in dict.fromkeys(lines) if line in everything]
    assert shown[:3] == everything[:3]
    assert shown[-2:] == everything[-2:]
    assert len(shown) < 500
    shutil.rmtree(client.runs)
    again = client.run("attach", run, "--host", "local")
    assert again.stdout.splitlines() == everything
    assert "succeeded" in again.stderr
    assert client.run("attach", run).stdout == ""
    shutil.rmtree(client.runs)
    quiet = client.run("attach", run, "-q", "--host", "local")
    assert (quiet.stdout, "succeeded" in quiet.stderr) == ("", True)
    shutil.rmtree(client.runs)
    told = map(json.loads, client.ok("attach", run, "--json", "--host", "local").splitlines())
    logs = [line for line in told if line.get("kind") == "log"]
    assert [line["text"] for line in logs] == everything
    assert {(line["run"], line["attempt"]) for line in logs} == {(run, 1)}


def test_no_escape_of_a_script_passes_the_live_bar(client):
    """Names of stages and metrics while the run is shown in a terminal."""
    client.script(HOSTILE)
    said = Terminal(client, "--", "python", "train.py").to_the_end()
    assert "exit-nonzero" in said
    assert steering(said) == []


@mostly_long("words", [("probe",), ("--dry-run",), ("--dry-run", "--json"), ()], ci=(0, 3))
def test_no_escape_of_an_interpreter_passes_the_probe(client, words):
    """What a host's python says when it is asked for its version."""
    client.script(f"#!/usr/bin/env python3\nimport sys\nsys.exit({EVIL!r})\n", "evil.py")
    (client.project / "evil.py").chmod(0o755)
    client.script(f'[hosts.local]\nenvironment = "{client.project / "evil.py"}"\n', "launch.toml")
    done = client.run(*words)
    assert "evil" in done.stdout + done.stderr
    assert controls(done.stdout + done.stderr) == []


def test_an_error_keeps_its_lines_and_loses_its_escapes(client):
    """A file's own text in a message of ours: the lines are ours, the escapes nobody's."""
    (client.project / "launch.toml").write_text('["\\u001b[2J\\u202e"]\n')
    done = client.run("probe")
    assert done.returncode == 2
    assert "\n  allowed: " in done.stderr
    assert controls(done.stderr) == []


def test_a_line_cannot_begin_another(capsys):
    """Whatever a host sends as a name or a reason stays on its line."""
    say("reason\n  ✓ succeeded", "a\rb\u2028c\x85d")
    assert capsys.readouterr().out == "reason   ✓ succeeded\na b c d\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("a\x1bP1$r\x1b\\b\x1b(Bc\x1b=d\x1b", "abcd"),
        ("\x9b2Ja\x9d0;t\x9cb\u202ec\u2066d", "abcd"),
        ("\x1b]0;no end\nthe next line\x07", "0;no end\nthe next line"),
        ("10%\r20%\tü 日本\u3000語\xa0x\n", "10%\r20%\tü 日本 語 x\n"),
    ],
)
def test_a_log_keeps_its_text_and_loses_its_escapes(text, left):
    """Whole sequences go, an unfinished one takes no line with it, spaces stay."""
    assert without_escapes(text) == left


# the cursor


WAITS = "import time\nimport launcher_worker as w\nw.log(1, loss=0.5)\ntime.sleep(600)\n"


@mostly_long("number", [signal.SIGINT, signal.SIGTERM], ci=(0,))
@pytest.mark.parametrize("verb", ["launch", pytest.param("attach", marks=pytest.mark.long)])
def test_ctrl_c_and_sigterm_give_the_cursor_back(client, verb, number):
    """The bar is ended, and the way back is said; the run goes on."""
    client.script(WAITS)
    words = ("--", "python", "train.py")
    if verb == "attach":
        words = ("attach", client.detached(*words))
    terminal = Terminal(client, *words)
    until(lambda: "loss 0.5" in terminal.said(), "the bar")
    terminal.process.send_signal(number)
    said = terminal.to_the_end()
    assert terminal.process.returncode == (0 if number == signal.SIGINT else 143)
    assert "detached" in said
    assert "Traceback" not in said
    assert said.rfind(SHOW) > said.rfind(HIDE) >= 0
    assert processes_of(client.home / ".launch" / "runs")
    client.ok("stop", "--now", "--yes", "last")


def test_ctrl_z_gives_the_cursor_back_until_the_bar_goes_on(client):
    """Twice, for what is stopped once may be stopped again; then Ctrl-C still detaches."""
    client.script(WAITS)
    terminal = Terminal(client, "--", "python", "train.py")
    until(lambda: "loss 0.5" in terminal.said(), "the bar")
    for _ in range(2):
        terminal.process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        said = terminal.said()
        assert said.rfind(SHOW) > said.rfind(HIDE) >= 0
        terminal.process.send_signal(signal.SIGCONT)
        until(lambda: "loss 0.5" in terminal.said().rpartition(SHOW)[2].partition(HIDE)[2], "the bar again")
    terminal.process.send_signal(signal.SIGINT)
    said = terminal.to_the_end()
    assert terminal.process.returncode == 0
    assert said.rfind(SHOW) > said.rfind(HIDE)
    client.ok("stop", "--now", "--yes", "last")


class Breaks:
    """A channel to an agent that fails while it is followed."""

    host = "h"

    def __init__(self, error):
        self.error = error

    def call(self, *_, **__):
        """Fail."""
        raise self.error

    def close(self):
        """End it."""


@pytest.mark.parametrize(
    "error", [AgentError("h", "os", "h: no"), RuntimeError("a bug"), KeyboardInterrupt()]
)
def test_whatever_happens_while_following_the_cursor_comes_back(tmp_path, error):
    """An agent that refuses, a mistake of ours, Ctrl-C: the bar is ended before anything else is said."""
    screen = io.StringIO()
    view = TerminalView(Console(file=screen, force_terminal=True, _environ={"TERM": "xterm"}))
    with pytest.raises(Exit if isinstance(error, KeyboardInterrupt) else type(error)):
        follow.follow_to_end(None, LocalCopy("1120-x-abcd", tmp_path), view, HostClient(Breaks(error)))
    assert screen.getvalue().rfind(SHOW) > screen.getvalue().rfind(HIDE) >= 0


@pytest.mark.parametrize(("waited_s", "rings"), [(9.0, 0), (11.0, 1)])
def test_the_bell_rings_for_whoever_has_waited(monkeypatch, waited_s, rings):
    """At the end of a run that was followed for more than 10 s, and never for less."""
    screen = io.StringIO()
    view = TerminalView(Console(file=screen, force_terminal=True, _environ={"TERM": "xterm"}))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + waited_s)
    view.end("1120-x-abcd", RunState(state="succeeded"), Result(None, {}, None, {}, None, waited_s))
    assert screen.getvalue().count("\a") == rings


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_long_note_goes_on_below_itself(width):
    """Broken between words, in the width of the terminal; nothing of it is lost."""
    screen = io.StringIO()
    view = TerminalView(Console(file=screen, force_terminal=True, width=width, _environ={"TERM": "xterm"}))
    view.note(HOOK_NOTE)
    lines = Text.from_ansi(screen.getvalue()).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(f"· {HOOK_NOTE}".split())
    assert all(line.startswith("    ") for line in lines[1:])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_suggested_command_stays_whole(width):
    """It is there to be copied: on a line of its own where it does not fit, and what it does below it."""
    command = "launch pull 7l60hq checkpoints/step-4"
    words = "checkpoints stay on local: checkpoints/step-4 (737.7 kB)"
    for note in (f"{words}   {command}", f"{words}   {command}     brings it here"):
        lines = [*wrapped_lines([f"  · {note}"], width)]
        assert max(map(len, lines)) <= width or width == 40
        assert sum(command in line for line in lines) == 1
        assert " ".join(" ".join(lines).split()) == " ".join(f"· {note}".split())
    long = f"launch logs {'x' * 300}"
    assert f"    {long}" in [*wrapped_lines([f"  · {words}   {long}"], width)]
    cron = f"15 * * * * launch reconcile --adopt {'x' * 32} && crontab -l | grep -v {'x' * 32} | crontab -"
    lines = [*wrapped_lines([f"  · a line for crontab -e on another machine:   {cron}"], width)]
    assert lines[-1].strip() == cron or width == 200


# the log


TORN = """
import os, sys, time
def put(data, until=None):
    os.write(1, data)
    while until and not os.path.exists(until):
        time.sleep(0.01)
here = os.path.join(os.environ["HOME"], "go")
put(b"first \\xc3", here + "1")
put(b"\\xa9 second \\xe2\\x82", here + "2")
put(b"\\xac third\\n")
"""


@pytest.mark.long
def test_a_character_that_is_torn_comes_out_whole(client):
    """Between what was fetched and what is followed, and between two pieces of the latter."""
    client.script(TORN)
    run = client.detached("--", "python", "train.py")
    host = client.home / ".launch" / "runs" / run / "record" / "0002" / "log.txt"
    local_copy = client.runs / run / "0002" / "log.txt"
    until(lambda: host.exists() and host.read_bytes().endswith(b"\xc3"), "the first half")
    process = client.start("logs", run, "-f")
    until(lambda: local_copy.exists() and local_copy.read_bytes().endswith(b"\xc3"), "it to be fetched")
    (client.home / "go1").touch()
    until(lambda: local_copy.read_bytes().endswith(b"\xe2\x82"), "the second half, and the next first one")
    (client.home / "go2").touch()
    out, err = process.communicate(timeout=180)
    assert out == "first é second € third\n", err
    assert client.ok("logs", run) == out


ENDLESS = """
import itertools, time
import launcher_worker as w
first = int(open(w.resume_from() + "/step").read()) if w.resume_from() else 0
for step in itertools.count(first + 1):
    print("line", step, flush=True)
    if step % 10 == 0:
        def write(folder):
            with open(folder + "/step", "w") as file:
                file.write(str(step))
        w.save(step, write)
    time.sleep(0.002)
"""


@pytest.mark.long
def test_logs_of_a_live_run_with_several_attempts_are_the_hosts_byte_for_byte(client):
    """What was fetched and what is followed, while the agent dies once more."""
    client.script(ENDLESS)
    client.script('name = "endless"\ncommand = ["python", "train.py"]\nrestart = true\n', "job.toml")
    run = client.detached("--job", "job.toml")
    folder = client.home / ".launch" / "runs" / run / "record"

    def lines(number):
        log = folder / number / "log.txt"
        return log.exists() and log.read_bytes().count(b"line")

    def agent(number):
        return json.loads((folder / number / "attempt.json").read_text())["agent"]["pid"]

    until(lambda: lines("0002") > 50, "the first attempt")
    os.kill(agent("0002"), signal.SIGKILL)
    until(lambda: (lines("0003") or 0) > 50, "the second attempt")
    process = client.start("logs", run, "-f")
    os.kill(agent("0003"), signal.SIGKILL)
    until(lambda: (lines("0004") or 0) > 50, "the third attempt")
    client.run("stop", "--now", run)
    out, err = process.communicate(timeout=180)
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("[0-9]*/log.txt"))).decode()
    assert out == whole, err
    assert client.ok("logs", run) == whole


def test_what_another_client_fetches_meanwhile_is_shown_once(tmp_path, capsys):
    """Two clients share a mirror: what the other one brought is neither lost nor shown again."""
    local_copy = LocalCopy("1120-x-abcd", tmp_path)
    first, second = (local_copy.folder / number / "log.txt" for number in ("0002", "0003"))
    for path in (first, second):
        path.parent.mkdir(parents=True)
    first.write_text("a\n")
    view = LogView(local_copy)
    view.show()
    first.write_text("a\nb\n")
    second.write_text("c\n")
    local_copy.sync.load()  # where following takes up
    view.begin(local_copy.run, PlanSummary(), [])
    nothing = News(RunState(state="running"), [], [], is_all=True)
    view.news(nothing)
    view.news(nothing)
    assert capsys.readouterr().out == "a\nb\nc\n"


@pytest.mark.long
def test_lines_that_attach_shows_are_whole(client):
    """Begun where an earlier command had stopped fetching, in the middle of a character."""
    client.script(TORN + "sys.exit('the reason')\n")
    run = client.detached("--", "python", "train.py")
    host = client.home / ".launch" / "runs" / run / "record" / "0002" / "log.txt"
    local_copy = client.runs / run / "0002" / "log.txt"
    until(lambda: host.exists() and host.read_bytes().endswith(b"\xc3"), "the first half")
    assert client.ok("logs", run) == "first "
    process = client.start("attach", run)
    (client.home / "go1").touch()
    until(lambda: local_copy.read_bytes().endswith(b"\xe2\x82"), "the second half, and the next first one")
    (client.home / "go2").touch()
    out, _ = process.communicate(timeout=180)
    assert out == "first é second € third\nthe reason\n"


@pytest.mark.parametrize("words", [["probe"], ["ps"]])
def test_who_waits_for_a_silent_host_sees_what_for(client, words):
    """After a second, and the line goes away again; a pipe gets none."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(2):
                with server.accept()[0] as link:
                    link.settimeout(3)
                    with contextlib.suppress(TimeoutError):
                        while link.recv(1 << 16):
                            pass

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = server.getsockname()[1]
        client.script(f'[hosts.hang]\naddress = "127.0.0.1"\nport = {port}\nuser = "me"\n', "launch.toml")
        text = in_terminal(client, *words, "--host", "hang", columns=100)
        assert "waiting for hang\r\x1b[K" in text
        assert text.rpartition("\r\x1b[K")[2].startswith("hang")
        assert "waiting" not in client.run(*words, "--host", "hang").stderr
        thread.join()
