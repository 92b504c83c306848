"""`launch exec`: a command beside a run. What is left of it is asked of /proc."""

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import LAUNCH, marked, processes_of, until
from testbed.kept import Kept

pytestmark = pytest.mark.slow(reason="each test starts clients and a run")

FAMILY = """
import os, signal, subprocess, sys, time
mark, how = sys.argv[1:]
sleeps = [sys.executable, "-c", "import time; time.sleep(600)", mark]
if how == "leaves":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:  # a session of its own, and an orphan
    os.setsid()
    if os.fork() == 0:
        os.execv(sleeps[0], sleeps)
    os._exit(0)
os.wait()
subprocess.Popen(sleeps, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("up", flush=True)
if how == "stays":
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A client that has a run that has ended, and its id."""
    made = Kept(tmp_path_factory.mktemp("ended"))
    made.client.script(FAMILY, "family.py")
    run = made.client.detached("--", "true")
    made.keep()
    return made, run


@pytest.fixture
def ended(client, kept):
    """A run of the client that has ended; its id."""
    made, run = kept
    made.give(client)
    return run


def execute(client, run, *command):
    """Run `launch exec` to its end, with its output as bytes."""
    return subprocess.run(
        [*LAUNCH, "exec", run, "--", *command],
        cwd=client.project, env=client.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


def test_what_it_prints_comes_as_it_is_and_its_exit_code_is_ours(client, ended):
    """Two streams, raw bytes, large ones whole; words are words, and nothing waits on its input."""
    done = execute(client, ended, "sh", "-c", 'printf "\\033[1m\\377\\0out"; printf err >&2; cat; exit 7')
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\x1b[1m\xff\0out", b"err")
    done = execute(client, ended, "printf", "%s|", "a b", "$HOME;'\"`", "", "*", "--", "größe")
    assert done.stdout.decode() == "a b|$HOME;'\"`||*|--|größe|"
    done = execute(client, ended, "head", "-c", "3000000", "/dev/zero")
    assert (done.returncode, done.stdout) == (0, bytes(3_000_000))


def test_a_command_that_a_signal_ends_or_that_is_not_there_is_told_as_by_a_shell(client, ended):
    """128 and the signal; 127 for no such program, 126 for one that cannot be run, each with its name."""
    assert execute(client, ended, "sh", "-c", "kill -9 $$").returncode == 137
    missing = execute(client, ended, "no-such-program", "x")
    assert (missing.returncode, missing.stdout) == (127, b"")
    assert b"no-such-program" in missing.stderr
    barred = execute(client, ended, "./family.py")
    assert barred.returncode == 126
    assert b"./family.py: Permission denied" in barred.stderr


LOOKS = """
import json, os, sys
import launcher_worker as worker
worker.log(1, gain=1.0)
worker.done(1)
kept = {name: value for name, value in os.environ.items() if name.startswith(("LAUNCH_", "CUDA_", "HF_"))}
print(json.dumps([os.getcwd(), sys.executable, os.path.dirname(worker.__file__), kept]), flush=True)
"""


def test_it_stands_where_the_training_stands_and_leaves_no_mark(client, monkeypatch):
    """The code's folder, the interpreter, the worker, the card; no secret, and no way into the record."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    client.script(
        LOOKS + "import time\nwhile len(sys.argv) == 1 and not os.path.exists('go'): time.sleep(0.02)\n"
    )
    run = client.detached("--secret", "HF_TOKEN", "--", "python", "train.py")
    folder = client.home / ".launch" / "runs" / run
    log, events = (folder / "record" / "0002" / name for name in ("log.txt", "events.jsonl"))
    until(lambda: log.read_bytes().endswith(b"\n"), "the training's look around")
    until(lambda: b'"done"' in events.read_bytes(), "its events, which come by another way")
    before = {path: path.read_bytes() for path in folder.rglob("*.jsonl")}
    done = execute(client, run, "python", "train.py", "once")
    assert done.returncode == 0, done.stderr
    *places, there = json.loads(log.read_text())
    *same, here = json.loads(done.stdout.splitlines()[-1])
    assert same == places == [str(folder / "work" / "code"), sys.executable, places[2]]
    assert set(there) - set(here) == {
        "HF_TOKEN",
        "LAUNCH_SOCKET",
        "LAUNCH_STACKS",
        "LAUNCH_HOOK",
        "LAUNCH_ATTEMPT",
        "LAUNCH_ADOPTER",
    }
    assert here.pop("LAUNCH_EXEC")
    assert here == {name: there[name] for name in here}
    assert {"LAUNCH_RUN", "LAUNCH_TOKEN", "CUDA_VISIBLE_DEVICES"} <= set(here)
    assert before == {path: path.read_bytes() for path in folder.rglob("*.jsonl")}
    assert sorted(os.listdir(folder / "work" / "checkpoints")) == []
    (folder / "work" / "code" / "go").touch()
    until(
        lambda: '"succeeded"' in (folder / "record" / "0002" / "state.json").read_text(), "the training's end"
    )


def test_what_it_leaves_behind_is_ended_with_it(client, ended):
    """A child, and an orphan in a session of its own; neither heeds SIGTERM."""
    mark = secrets.token_hex(8)
    assert execute(client, ended, "python", "family.py", mark, "leaves").stdout == b"up\n"
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("place", "how"),
    [
        pytest.param("local", "ctrl-c", marks=pytest.mark.long),
        pytest.param("local", "killed", marks=pytest.mark.long),
        pytest.param("A", "ctrl-c", marks=[pytest.mark.testbed, pytest.mark.long]),
        pytest.param("A", "cut", marks=pytest.mark.testbed),
    ],
)
def test_it_ends_with_whoever_listens_to_it(client, place, how, request):
    """Ctrl-C: 130, and all of it has ended by then. A client that dies, and a link that breaks, end it as well."""
    lab = request.getfixturevalue("lab") if place == "A" else None
    client.script(FAMILY, "family.py")
    client.ok("--detach", "--host", place, "--", "true")
    mark = secrets.token_hex(8)
    with client.start("exec", "last", "--", "python", "family.py", mark, "stays") as process:
        try:
            assert process.stdout.readline() == "up\n", "it comes while the command runs"
            until(lambda: len(marked(mark)) == 3, "the command, its child and the orphan")
            if how == "cut":
                lab.cut()
            else:
                process.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
            _, said = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == {"ctrl-c": 130, "killed": -9, "cut": 4}[how]
    assert "Traceback" not in said
    if how == "ctrl-c":
        assert marked(mark) == []
    until(lambda: marked(mark) == [], "the end of the command and its children")


def test_it_ends_though_the_agent_that_started_it_is_killed(client, ended):
    """The command, its child and an orphan, though nobody is left who could be told; and the guard with them."""
    mark = secrets.token_hex(8)
    root = client.home / ".launch"
    with client.start("exec", ended, "--", "python", "family.py", mark, "stays") as process:
        assert process.stdout.readline() == "up\n"
        until(lambda: len(marked(mark)) == 3, "the command, its child and the orphan")
        (agent,) = serving(root)
        os.kill(agent, signal.SIGKILL)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 4
    assert "Traceback" not in said
    until(lambda: marked(mark) == [], "the end of the command and its children")
    until(lambda: processes_of(root) == [], "the end of the guard")


def serving(root):
    """The pids of the agents that answer a client of this root."""
    words = [b"serve", os.fsencode(root), b""]
    return [
        pid
        for pid in processes_of(root)
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3:] == words
    ]


def test_a_terminal_sees_no_escapes(client, ended):
    """Colours and titles are left out, also where they come in pieces; a character in pieces is one."""
    script = (
        "import os, time\n"
        r"for piece in (b'\x1b[3', b'1mred\x1b]0;ti', b'tle\x07 gr\xc3', b'\xb6\xc3\x9fe\n'):"
        "\n    os.write(1, piece); time.sleep(0.05)"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*LAUNCH, "exec", ended, "--", "python", "-c", script],
        cwd=client.project, env=client.env, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # how Linux says that the other end is closed
        os.close(ours)
    assert (process.wait(timeout=180), said.decode()) == (0, "red größe\r\n")


def test_a_run_of_another_host_or_without_code_is_refused(client, ended):
    """A shared home shows runs whose processes are elsewhere; a run that never got its code has nowhere to stand."""
    folder = client.home / ".launch" / "runs" / ended
    (folder / "work" / "code").rename(folder / "away")
    done = client.run("exec", ended, "--", "true")
    assert (done.returncode, done.stdout) == (4, "")
    assert "has no code folder" in done.stderr
    prepare = folder / "control" / "prepared.json"
    prepare.write_text(json.dumps({**json.loads(prepare.read_text()), "place_id": "another"}))
    (folder / "away").rename(folder / "work" / "code")
    done = client.run("exec", ended, "--", "touch", "mark")
    assert done.returncode == 4
    assert "another host" in done.stderr
    assert not (folder / "work" / "code" / "mark").exists()


def test_words_without_the_dashes_show_the_form(client):
    """Exit code 2, and a line to paste."""
    for words, form in (([], "launch exec last -- nvidia-smi"), (["ls", "x"], "launch exec last -- ls x")):
        done = client.run("exec", "last", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert form in done.stderr
    assert processes_of(client.home / ".launch") == []


@pytest.mark.parametrize("by", [pytest.param("rm", marks=pytest.mark.long), "another client"])
def test_a_removed_run_is_told_alike_by_each_command(client, by):
    """One exit code, and the commands that still work. The host is asked where this client did not remove it."""
    client.ok("--", "true")
    (run,) = [path.name for path in client.runs.glob("[0-9]*")]
    if by == "rm":
        client.ok("rm", "--yes", run)
        lines = [["shell"], ["cp", f"{run}:x", "."], ["pull"], ["stop"], ["recover"]]
    else:
        (client.home / ".launch" / "runs" / run).rename(client.home / "away")
        lines = [["recover"]]
    lines += [["exec", run, "--", "true"], ["forward", run, "6006"]]
    short = run.rpartition("-")[2]
    for verb, *words in lines:
        done = client.run(verb, *(words or [run]))
        assert (verb, done.returncode) == (verb, 1), done.stderr
        assert f"launch ls {short} " in done.stderr, (verb, done.stderr)
        assert f"launch rerun {short}" in done.stderr, (verb, done.stderr)
    client.ok("ls", run)
    client.ok("rerun", run)
