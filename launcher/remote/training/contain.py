"""The agent as a container's first program: the small parent of `supervise`, as the keeper is natively.

It sees that an attempt can be put on record in there, starts the agent, and leaves as its agent left. To bring it back is the
engine's part. How an agent died is kept in `container.json` for the next one, which puts it on record as `previous`.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Any

from ..record import strict_json
from ..record.rundir import Run, read_json, write_durably
from ..system import oom, process
from . import keeper

UNKNOWN = "restarted; what ended it is the engine's to say"


def main(arguments: list[str]) -> int:
    """Start a run's agent in its container; return its exit status, 128 and the signal for a killed one.

    Where nothing can be written, or agents die one after the other before the command begins, say it and return 0:
    the engine brings nothing back then.
    """
    run = Run(os.path.abspath(arguments[0]))
    shutdown: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # one that comes before there is an agent waits for it
        signal.signal(number, lambda got, _frame: shutdown.append(got))
    for folder in (run.record, run.work, os.environ["HOME"]):
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            who = "%d:%d" % (os.getuid(), os.getgid())
            sys.stderr.write("user %s cannot write to %s in here: %s\n" % (who, folder, error.strerror))
            return 0
    if not os.path.exists(run.plan):
        sys.stderr.write("there is no run in %s\n" % run.path)
        return 0
    last, before = run.numbers()[-1], read_json(run.container_end)
    without_folder = int(before.get("without_folder", 0)) if before.get("after") == last else 0
    failures = _failures(run) + without_folder
    if failures >= keeper.MOST_FAILURES:
        sys.stderr.write("%d agents in a row died before the command began; no more are tried\n" % failures)
        return 0
    process.become_subreaper()
    status = keeper.run_agent(run, _seen(run, before), shutdown)
    ended = process.end(
        process.own_descendants, "descendant", 0.0
    )  # as the keeper: no step that nobody records
    code, killed_by = process.exit_of(status)
    if code == 0:
        return 0
    if os.path.exists(run.plan):
        came = run.numbers()[-1] != last
        end = {
            "exit": code,
            "signal": killed_by,
            "oom_kills": oom.kills(),
            "ended": ended,
            "after": last,
            "without_folder": 0 if came else without_folder + 1,
        }
        try:
            write_durably(run.container_end, strict_json.encode(end) + "\n")
        except OSError as error:  # a full disk
            sys.stderr.write("%s: %s\n" % (run.container_end, error.strerror))
    return 128 + killed_by if killed_by is not None else int(code or 0)


def _failures(run: Run) -> int:
    """Return how many agents died before the command began, since one that did not or since a client's contact."""
    found = 0
    for number in reversed(run.numbers()):
        folder = run.folder(number)
        if read_json(folder.attempt).get("kind") in ("prepare", "contact") or folder.read_state().get(
            "began"
        ):
            break
        found += 1
    return found


def _seen(run: Run, before: dict[str, Any]) -> dict[str, object] | None:
    """Return what the next agent puts on record of the one before it; of one after a contact that has told already."""
    if before:
        return {"container": {key: before.get(key) for key in ("exit", "signal", "oom_kills", "ended")}}
    kind = read_json(run.folder(run.numbers()[-1]).attempt).get("kind")
    return None if kind in ("prepare", "contact") else {"container": UNKNOWN}
