"""The keeper: the small parent process of `supervise`. In a container the engine has this role.

It holds the run's keeper lock. When its agent ends, the keeper ends every process that it inherited from it.
Unless the exit status was 0, it restarts the agent with back-off, once the disk has room. It writes nothing
into the run's folders: its report on the dead agent is passed to the next agent, which records it as
`previous`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Callable

from ..record import strict_json
from ..record.files import NO_ROOM
from ..record.locks import Lock
from ..record.rundir import Run
from ..record.safe_open import read_tail, status_of
from ..store import checkpoints
from ..store.secret_end import forget_secrets
from ..system import process, token_processes

if TYPE_CHECKING:
    from ..record.run_records import PreviousRecord

BACK_OFF_S = (0.2, 1.0, 2.0, 5.0, 15.0, 60.0)
HEALTHY_S = 300.0
MAX_FAILURES = 100  # in a row, about 90 minutes; then the run stays interrupted until a client recovers it
MAX_UNWRITTEN = 3
ROOM = 64 * 1024  # bytes: more than an agent writes before the command starts
ROOM_POLL_S = 1.0
TAIL = 500
SEEN = "LAUNCH_SEEN"
"""The variable with the report on the last agent and its log's end. All users could see an argument."""


def main(arguments: list[str]) -> int:
    """Keep a run until its agent exits with 0, the host shuts down, or the run's folder is gone; return 0."""
    run = Run(os.path.abspath(arguments[0]))
    os.environ[token_processes.OF_ADOPTER] = (
        token_processes.words_of_adopter()
    )  # before the lock: a fork would hold it too
    lock = Lock.take(run.keeper_lock)
    if lock is None:
        return 0
    process.become_subreaper()
    shutdown: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: shutdown.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen: PreviousRecord | None = None
    failures = 0
    while failures < MAX_FAILURES and os.path.exists(run.plan):
        if not wait_for_room(run, shutdown):
            return 0
        began = time.monotonic()
        newest = checkpoints.newest(run.checkpoints)
        log_size = size_of(run.keeper_log)
        process.keep_awake()  # for each agent: this child process is ended with the agent
        status = run_agent(run, seen, shutdown)
        ended = process.end(
            process.own_descendants, "descendant", 0.0
        )  # no grace: steps after the agent's death are not recorded
        code, number = process.exit_of(status)
        if code == 0 or shutdown:
            return 0
        words = tail_of(run.keeper_log, log_size)
        seen = {"keeper": {"exit": code, "signal": number, "ended": ended, "said": words}}
        is_healthy = time.monotonic() - began > HEALTHY_S or checkpoints.newest(run.checkpoints) != newest
        failures = 0 if is_healthy else failures + 1
        if failures >= MAX_UNWRITTEN and run.read_wish() != "run":
            break  # agents cannot record the end; the wish file already contains it
        pause(back_off_s(failures), run, lambda: bool(shutdown))
        if shutdown:
            break
    return 0


def back_off_s(failures: int) -> float:
    """Return the seconds to wait before the next agent, after this number of deaths in a row."""
    return BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1] if failures else 0.0


def pause(seconds: float, run: Run, is_over: Callable[[], bool]) -> None:
    """Wait before the next start. A wish to stop ends the wait, and so does a shutdown of the keeper."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_over() and run.read_wish() == "run":
        time.sleep(0.1)


def size_of(path: str) -> int:
    """Return the size of a file, 0 if it is missing."""
    try:
        return status_of(path).st_size
    except FileNotFoundError:
        return 0


def tail_of(path: str, start: int) -> str:
    """Return the end of the text that was written to a file after `start`."""
    return read_tail(path, TAIL, start).decode("utf-8", "replace").strip()


def handed_on(seen: PreviousRecord | None) -> dict[str, str]:
    """Return the variables that pass the report on the last agent to the next."""
    return {} if seen is None else {SEEN: strict_json.encode(seen)}


def run_agent(run: Run, seen: PreviousRecord | None, shutdown: list[int]) -> int:
    """Start `supervise`, wait for it while reaping orphans, and return its wait status.

    The new agent records `seen` about the one before it. SIGTERM and SIGINT are passed on as SIGTERM, and
    noted in `shutdown`.
    """
    command = [sys.executable, "-I", sys.argv[0], "supervise", run.path]
    variables = {**os.environ, **handed_on(seen)}
    agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables)

    def pass_on(number: int, _frame: object) -> None:
        shutdown.append(number)
        child = process.find(agent.pid)
        if child is not None:
            process.send(child, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    if shutdown:  # it arrived while the agent was being started
        pass_on(shutdown[0], None)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent.pid:
            agent.returncode = status  # reaped here, so Popen does not know the status
            return status


def wait_for_room(run: Run, shutdown: list[int]) -> bool:
    """Wait until the disk has room for an agent's record.

    Return False if the user asked to end the run during the wait. That wish is on record, so the run has
    ended by it; its secrets are erased. A shutdown ends the wait.
    """
    while not shutdown and not _has_room(run.record):
        if run.read_wish() != "run":
            with contextlib.suppress(OSError):  # a sweep removes them
                forget_secrets(run)
            return False
        time.sleep(ROOM_POLL_S)
    return True


def _has_room(folder: str) -> bool:
    """Try to write: statvfs does not show a quota. Any other error of the disk is reported by the agent."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * ROOM)
    except OSError as error:
        return error.errno not in NO_ROOM
    return True
