"""A command beside a run, for `launch exec`.

It has the run's variables except those that could write into its record (LAUNCH_SOCKET, LAUNCH_ATTEMPT) and except the
run's secrets.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import Any

from ..record.rundir import Run
from ..system.attending import MARK, CommandError, attend
from ..training.variables import interpreter_of, native_command, variables


def execute(run: Run, command: Any, wire: Any) -> dict[str, Any]:
    """Run a command in a run's code folder while the client listens; return {"exit", "signal"}, one of them None.

    Raises CommandError before it has begun, and what the wire raises when the client has gone; it is ended then.
    """
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise CommandError("bad-command", "%r is no command" % (command,))
    if not os.path.isdir(run.code):
        raise CommandError("no-code", "run %s has no code folder: its code never arrived" % run.id)
    return attend(partial(_start, run, command), wire)


def _start(run: Run, command: list[str], token: str) -> subprocess.Popen[bytes]:
    runtime = {**(run.prepared().get("runtime") or {}), "gpus": run.cards()}
    try:
        return subprocess.Popen(
            native_command(command, interpreter_of(runtime)),
            cwd=run.code,
            env={**variables(run, runtime), MARK: token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CommandError("not-found", "there is no program %s" % command[0]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in a word
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError("not-executable", "%s: %s" % (command[0], reason)) from None
