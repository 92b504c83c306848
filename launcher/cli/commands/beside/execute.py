"""exec: run a command on a run's host."""

from __future__ import annotations

import codecs
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, TextIO

import typer

from launcher.cli.options import HostOption, RunWord
from launcher.cli.output.say import complain, without_escapes
from launcher.cli.quick import TrailingCommand
from launcher.errors import AgentError, UsageError

_CODES = {"not-found": 127, "not-executable": 126}
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\n]*\x1b?|[ -/]*)\Z")
_LONGEST_ESCAPE = 1000


class ExecuteCommand(TrailingCommand):
    """A command of launch that requires another command after `--`."""

    command_words = "-- COMMAND…"


def execute(
    ctx: typer.Context,
    run: RunWord,
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
) -> None:
    """Run a command on a run's host, in its code folder.

    The command has the run's environment, but no input and no secrets. Its output is shown at once, and the exit code is
    the command's. Ctrl-C or a lost link ends the command and all processes that it started.

    Examples:
        launch exec last -- nvidia-smi
        launch exec w8q2 -- ls -la ../artifacts
    """
    words: list[str] = ctx.obj or []
    if stray or not words:
        given = " ".join(stray or ["nvidia-smi"])
        raise UsageError(f"the command must follow --\n  example   launch exec {run} -- {given}")
    from launcher.backends.registry import backend_of
    from launcher.runs.commands_beside import execute as run_there
    from launcher.runs.locating import locate
    from launcher.runs.run_client import open_client

    place, local_copy = locate(run, host)
    backend_of(place).check_has(place, "exec", local_copy.short)
    local_copy.check_not_freed()
    try:
        with open_client(place, local_copy) as client, shown_output() as show:
            code = run_there(client, local_copy.run, words, show)
    except AgentError as error:
        code = code_of(error)
    raise typer.Exit(code)


@contextlib.contextmanager
def shown_output() -> Iterator[Callable[[int, bytes], None]]:
    """Yield a function that shows a command's output at once. Its arguments: the stream, 1 or 2, and the bytes."""
    outputs = {1: _Output(sys.stdout), 2: _Output(sys.stderr)}
    yield lambda stream, data: outputs[stream].write(data)
    for output in outputs.values():
        output.finish()


def code_of(error: AgentError) -> int:
    """Print why a command did not start, and return the shell's exit code for it. Raise any other error again."""
    if error.code not in _CODES:
        raise error
    complain(str(error))
    return _CODES[error.code]


class _Output:
    """Standard output or error. It gets the command's bytes unchanged; a terminal gets the text without escapes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_terminal = file.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def write(self, data: bytes) -> None:
        """Write the bytes. An incomplete character or escape waits for its remaining bytes."""
        if not self._is_terminal:
            self._file.buffer.write(data)
            self._file.buffer.flush()
            return
        text = self._rest + self._decoder.decode(data)
        escape = _OPEN_ESCAPE.search(text, max(0, len(text) - _LONGEST_ESCAPE))
        cut = escape.start() if escape else len(text)
        self._rest = text[cut:]
        self._show(text[:cut])

    def finish(self) -> None:
        """Write the incomplete rest, as no more bytes follow."""
        self._show(self._rest + self._decoder.decode(b"", final=True))

    def _show(self, text: str) -> None:
        self._file.write(without_escapes(text))
        self._file.flush()
