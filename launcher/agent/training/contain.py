"""The first program of a container: the small parent process of `supervise`.

It has the keeper's role. It checks that the run's folder is writable, waits for room there, starts the agent,
and exits with the agent's status. The engine restarts the container. How an agent died is written to
`container.json` for the next one, which records it as `previous`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Mapping, cast

from ..record import strict_json
from ..record.files import NO_ROOM, read_json, write_durably
from ..record.rundir import Run
from ..system import login_umask, oom, process
from . import keeper

if TYPE_CHECKING:
    from ..record.run_records import AgentEndRecord, PreviousRecord

UNKNOWN = "restarted; only the engine knows what ended it"


def main(arguments: list[str]) -> int:
    """Start a run's agent in its container; return its exit status, 128 plus the signal for a killed one.

    If nothing can be written, or too many agents in a row died before the command began, print that and
    return 0, so that the engine does not restart the container.
    """
    login_umask.make_private()
    run = Run(os.path.abspath(arguments[0]))
    shutdown: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # passed on once the agent runs
        signal.signal(number, lambda got, _frame: shutdown.append(got))
    for folder in (run.record, run.work, os.environ["HOME"]):
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            if error.errno in NO_ROOM:
                continue
            user = "%d:%d" % (os.getuid(), os.getgid())
            sys.stderr.write(
                "user %s cannot write to %s in the container: %s\n" % (user, folder, error.strerror)
            )
            return 0
    if not os.path.exists(run.plan):
        sys.stderr.write("no run in %s\n" % run.path)
        return 0
    last, before = run.numbers()[-1], read_json(run.container_end)
    without_folder = int(before.get("without_folder", 0)) if before.get("after") == last else 0
    failures = _failures(run) + without_folder
    if failures >= keeper.MAX_FAILURES:
        sys.stderr.write("%d agents in a row died before the command began; no further restart\n" % failures)
        return 0
    if not keeper.wait_for_room(run, shutdown):
        return 0
    process.become_subreaper()
    status = keeper.run_agent(run, _seen(run, before), shutdown)
    ended = process.end(
        process.own_descendants, "descendant", 0.0
    )  # no grace, as in the keeper: further steps would not be recorded
    process.ignore_terminations()
    code, killed_by = process.exit_of(status)
    if code == 0:
        return 0
    if os.path.exists(run.plan):
        has_new_folder = run.numbers()[-1] != last
        end = {
            "exit": code,
            "signal": killed_by,
            "oom_kills": oom.kills(),
            "ended": ended,
            "after": last,
            "without_folder": 0 if has_new_folder else without_folder + 1,
        }
        try:
            write_durably(run.container_end, strict_json.encode(end) + "\n")
        except OSError as error:  # a full disk
            sys.stderr.write("%s: %s\n" % (run.container_end, error.strerror))
    return 128 + killed_by if killed_by is not None else int(code or 0)


def _failures(run: Run) -> int:
    """Return how many agents in a row died before the command began, since the last client's contact."""
    failures = 0
    for number in reversed(run.numbers()):
        folder = run.folder(number)
        if folder.read_attempt().get("kind") in ("prepare", "contact") or folder.read_state().get("began"):
            break
        failures += 1
    return failures


def _seen(run: Run, before: Mapping[str, object]) -> PreviousRecord | None:
    """Return the next agent's record of the one before it; None if a contact has recorded it already."""
    if before:
        end = {key: before.get(key) for key in ("exit", "signal", "oom_kills", "ended")}
        return {"container": cast("AgentEndRecord", end)}
    kind = run.folder(run.numbers()[-1]).read_attempt().get("kind")
    return None if kind in ("prepare", "contact") else {"container": UNKNOWN}
