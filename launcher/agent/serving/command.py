"""Run a command beside a run for `launch exec`, or a shell on a terminal for `launch shell`.

The program gets the run's variables, except secrets and those that lead to its record (LAUNCH_SOCKET,
LAUNCH_ATTEMPT, LAUNCH_STACKS).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from typing import Any, Iterator, List, NamedTuple, Tuple

from ..liveness import run_state
from ..record.rundir import Run
from ..system.client_program import AttendedProgram, CommandError, ProgramEnd, attend
from ..system.terminal import Window
from ..training.variables import interpreter_of, native_command, variables


def execute(run: Run, command: list[str], connection: Any) -> ProgramEnd:
    """Run a command in a run's code folder while the client is connected; return how it ended.

    Raises CommandError if it cannot start, and the connection's errors if the client has gone. The command is
    then ended.
    """
    if not command:
        raise CommandError("bad-command", "the command has no words")
    words, values = _beside(run, command)
    return attend(AttendedProgram(words, run.code, values), connection)


class Screen(NamedTuple):
    """The kind of a client's terminal, as in TERM, and the size of its window."""

    kind: str
    window: Window


def interact(run: Run, command: list[str], screen: Screen, connection: Any) -> ProgramEnd:
    """Like `execute`, run a command, but on a terminal. Without a command, run the user's shell."""
    words, values = _beside(run, command or [_shell()])
    values["TERM"] = screen.kind if _KIND.fullmatch(screen.kind) else "dumb"
    if command or os.path.basename(words[0]) != "bash":
        return attend(AttendedProgram(words, run.code, values, window=screen.window), connection)
    with _read_at_start(_start_of_bash(run, values["PATH"])) as reader:
        words += ["--rcfile", "/dev/fd/%d" % reader]
        return attend(AttendedProgram(words, run.code, values, (reader,), screen.window), connection)


_KIND = re.compile(r"[A-Za-z0-9._+-]{1,60}")


def _beside(run: Run, command: list[str]) -> Tuple[List[str], dict[str, str]]:
    """Return the words and the variables of a command beside a run. Raises CommandError."""
    if not os.path.isdir(run.code):
        raise CommandError("no-code", "run %s has no code folder: its code never arrived" % run.id)
    runtime = run_state.runtime_now(run)
    return native_command(command, interpreter_of(runtime)), variables(run, runtime)


def _shell() -> str:
    """Return the login shell, or another existing shell: in a container SHELL may be unset."""
    login = os.environ.get("SHELL", "")
    if os.access(login, os.X_OK):
        return login
    return shutil.which("bash") or "sh"


def _start_of_bash(run: Run, path: str) -> str:
    """Return the text of a bash startup file that puts the run's programs first and the run into the prompt.

    It reads the user's startup file first, because that may put other programs first (conda's does). `python`
    becomes the run's interpreter, whatever its file name. Other shells are not supported, because they would
    need a real file.
    """
    interpreter = interpreter_of(run.prepared().get("runtime") or {})
    beside = os.path.join(os.path.dirname(interpreter), "python")
    return _BASH_STARTS.format(
        path=shlex.quote(path),
        beside=shlex.quote(beside),
        interpreter=shlex.quote(interpreter),
        run=run.id.rpartition("-")[2],
    )


_BASH_STARTS = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PATH={path}
[ "$(command -v python)" = {beside} ] || alias python={interpreter}
PS1="({run}) $PS1"
"""


@contextlib.contextmanager
def _read_at_start(text: str) -> Iterator[int]:
    """Yield the descriptor of a pipe that holds a text."""
    reader, writer = os.pipe()
    try:
        os.write(writer, os.fsencode(text))  # fits into the pipe's buffer
        os.close(writer)
        yield reader
    finally:
        os.close(reader)
