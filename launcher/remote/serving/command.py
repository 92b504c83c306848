"""A command beside a run, for `launch exec`.

It gets the run's variables, without those that lead to its record (LAUNCH_SOCKET, LAUNCH_ATTEMPT) and without secrets.
"""

from __future__ import annotations

import os
from typing import Any

from ..record.rundir import Run
from ..system.attending import CommandError, Program, attend
from ..training.variables import interpreter_of, native_command, variables


def execute(run: Run, command: list[str], connection: Any) -> dict[str, Any]:
    """Run a command in a run's code folder while the client listens; return {"exit", "signal"}, one of them None.

    Raises CommandError if it cannot start, and what the connection raises when the client has gone; it is ended then.
    """
    if not command:
        raise CommandError("bad-command", "the command has no words")
    if not os.path.isdir(run.code):
        raise CommandError("no-code", "run %s has no code folder: its code never arrived" % run.id)
    runtime = {**(run.prepared().get("runtime") or {}), "gpus": run.cards()}
    words = native_command(command, interpreter_of(runtime))
    return attend(Program(words, run.code, variables(run, runtime)), connection)
