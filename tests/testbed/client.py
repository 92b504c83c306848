"""The machine of a user, and witnesses about processes that do not use the launcher's code."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from testbed.fork_server import PROGRAM, ForkServer

from launcher.transport.channel import AgentChannel
from launcher.transport.local import LocalLink
from launcher.values.host import Host

LAUNCH = [sys.executable, "-c", PROGRAM]
IS_REQUIRED = os.environ.get("LAUNCH_TESTBED") == "required"
REPOSITORY = Path(__file__).resolve().parents[2]
MIRRORED = "[0-9]*/attempt.json [0-9]*/state.json [0-9]*/events.jsonl [0-9]*/log.txt"
"""What a mirror has of a run's record, as a shell's patterns."""
RECORDER = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, lambda got, _: os.write(1, b"%d\\n" % got))
    except (OSError, ValueError):
        pass
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""
"""A program that prints the number of each signal it receives."""


def channel_to(host: Host) -> AgentChannel:
    """Open a channel to the agent on this machine, to ask it what no desk would."""
    return AgentChannel(host.name, LocalLink(host))


@functools.cache
def fork_server() -> ForkServer:
    """The process from which the commands of this test process are forked; it ends with it."""
    server = ForkServer(tempfile.mkdtemp(prefix="launch-testbed-"))
    atexit.register(server.end)
    return server


class Client:
    """A user's home and project folder, and the `launch` command run there.

    `is_forked`: `run` forks commands from a process that has imported the launcher; a benchmark starts a new Python. The
    program that is run there is the text behind `-c`.
    """

    is_forked = True
    program = LAUNCH
    server: ForkServer | None = None
    """Whence its commands are forked, if its variables change what Python imports."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.variables: dict[str, str] = {}  # added to the command's environment
        self._started: list[subprocess.Popen[str]] = []
        for path in (self.home, self.project):
            path.mkdir(parents=True, exist_ok=True)

    def end_commands(self) -> None:
        """End every process on this machine that this client has started, and whatever was started by those: all have its home.

        A test that fails may leave some, such as a batch's worker, which would go on with the hosts that later tests share.
        """
        deadline = time.monotonic() + 10
        while (pids := processes_of(self.home)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # until they have ended; one that another has just started is found then
        for process in self._started:
            process.wait(timeout=180)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    @property
    def runs(self) -> Path:
        """The folder of the mirrors."""
        return self.project / "runs"

    @property
    def index(self) -> Path:
        """The folder of the index of this user's runs."""
        return self.home / ".local/share/launch/runs"

    @property
    def env(self) -> dict[str, str]:
        """The variables of the command."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("LAUNCH_", "COV_")) and key != "XDG_DATA_HOME"
        }
        own = {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home),  # no connection of another client is held there
            "LAUNCH_TRUST": str(self.project),  # a test wrote what is there
        }
        return {**kept, **own, "NO_COLOR": "1", "COLUMNS": "200", **self.variables}

    def forks(self, *changed: str) -> ForkServer | None:
        """Return whence a command is forked whose variables of these names are changed too; None if a new Python is needed."""
        # By a simulated clock the variables of Python are for the processes that the command starts.
        own = () if "SIM_CLOCK" in self.variables else self.variables
        is_new = any(name.startswith(("PYTHON", "LC_")) for name in (*own, *changed))
        if not self.is_forked or (is_new and self.server is None):
            return None
        return self.server or fork_server()

    def start(self, *words: str, **more: object) -> subprocess.Popen[str]:
        """Start `launch …` and return the process; it has no terminal unless `more` gives it one."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        process = subprocess.Popen(
            [*self.program, *words],
            cwd=self.project,
            env=self.env,
            text=True,
            start_new_session=True,
            **streams,  # type: ignore[call-overload]
        )
        self._started.append(process)
        return process

    def run(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run `launch …` to its end. Fail if it shows a traceback. `ps` waits for hosts as long as a loaded machine needs."""
        if words[:1] == ("ps",) and "--wait" not in words:
            words = ("ps", "--wait", "1m", *words[1:])
        if (server := self.forks()) is not None:
            code, out, err = server.run(
                [*words], str(self.project), self.env, timeout, program=self.program[2]
            )
        else:
            process = self.start(*words)
            out, err = process.communicate(timeout=timeout)
            code = process.returncode
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, code, out, err)

    def ok(self, *words: str, timeout: float = 300) -> str:
        """Run `launch …`, which must succeed; return what it printed."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def planned(self, *words: str) -> str:
        """Run `launch --dry-run …`; return what it printed. It must exit with 3 if it says that the launch would be refused, else with 0."""
        done = self.run("--dry-run", *words)
        is_refused = "would refuse: " in done.stdout or '"level":"refuse"' in done.stdout
        assert done.returncode == (3 if is_refused else 0), done.stdout + done.stderr
        return done.stdout

    def seen(self, *words: str, timeout: float = 300) -> str:
        """Run `launch …`, which must succeed; return all that a person sees: stages and notes, then what was printed."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr + done.stdout

    def script(self, text: str, name: str = "train.py") -> None:
        """Put a training script into the project."""
        (self.project / name).write_text(text)

    def detached(self, *words: str) -> str:
        """Launch detached; return the run's id."""
        return self.ok("--detach", *words).split()[-1]

    def summary(self, run: str, *words: str) -> dict[str, object]:
        """Return the row of `launch ps --json` for a run."""
        rows = json.loads(self.ok("ps", "--json", *words))["runs"]
        return next(row for row in rows if row["run"] == run)


def missing(reason: str) -> None:
    """Skip the test because this machine lacks a part, or fail if the testbed is required."""
    if IS_REQUIRED:
        pytest.fail(f"the testbed is required, and {reason}")
    pytest.skip(reason)


def processes_of(run: Path) -> list[int]:
    """Return the pids on this machine whose command line or variables name a run's folder, read from /proc."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if os.fsencode(str(run)) in text and state != "Z":
            pids.append(int(entry.name))
    return pids


def orphan(words: list[str], env: dict[str, str], output: Path) -> int:
    """Start a process that init adopts, as it adopts what a killed run leaves; return its pid. It writes to `output`."""
    begin = ["sh", "-c", '"$@" >>"$0" 2>/dev/null & echo $!', str(output), *words]
    done = subprocess.run(
        begin, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def kill_all_of(run: Path) -> None:
    """Kill every process of a run on this machine; one may end by itself meanwhile."""
    for pid in processes_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until_left(run: Path, timeout: float = 240) -> None:
    """Wait until a run has no process on this machine. This costs a training less CPU time than `launch ps` in a loop."""
    until(lambda: not processes_of(run), f"the end of {run.name}", timeout, every=0.25)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def marked(mark: str) -> list[int]:
    """Return the pids whose command line holds a word that only one test says, `launch` itself left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if mark.encode() in words and LAUNCH[2].encode() not in words and not is_gone(int(entry.name)):
            found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], what: str, timeout: float = 180, every: float = 0.05) -> object:
    """Wait until a condition holds, checking it `every` so many seconds, and return its value. Fail after `timeout` seconds.

    One that takes long to check, as by a command, is checked less often, and half a second later at most: the machine is for what it waits for.
    """
    deadline = time.monotonic() + timeout
    while (began := time.monotonic()) < deadline:
        value = condition()
        if value:
            return value
        time.sleep(max(every, min(0.5, 3 * (time.monotonic() - began))))
    pytest.fail(f"waited {timeout} s for {what}")
