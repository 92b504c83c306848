"""A command beside a run, for `launch exec`.

It has the run's variables except those that could write into its record (LAUNCH_SOCKET, LAUNCH_ATTEMPT) and except the
run's secrets.
"""

from __future__ import annotations

import os
from typing import Any

from ..record.rundir import Run
from ..system.attending import CommandError, Program, attend
from ..training.variables import interpreter_of, native_command, variables


def execute(run: Run, command: Any, wire: Any) -> dict[str, Any]:
    """Run a command in a run's code folder while the client listens; return {"exit", "signal"}, one of them None.

    Raises CommandError before it has begun, and what the wire raises when the client has gone; it is ended then.
    """
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise CommandError("bad-command", "%r is not a command" % (command,))
    if not os.path.isdir(run.code):
        raise CommandError("no-code", "run %s has no code folder: its code never arrived" % run.id)
    runtime = {**(run.prepared().get("runtime") or {}), "gpus": run.cards()}
    words = native_command(command, interpreter_of(runtime))
    return attend(Program(words, run.code, variables(run, runtime)), wire)
