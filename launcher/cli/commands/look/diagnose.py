"""diagnose: the cause of a failure in a log or run, and its fix."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag
from launcher.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from launcher.transport.log_diagnosis import Diagnosis


def diagnose(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE|-|RUN", help="A log file, - for standard input, or a run."),
    ] = "last",
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain why a log or a run failed, and how to fix it.

    The answer has the class of the failure, the line that shows it, the reason and the fix. For a run, it explains the last
    failed attempt, or else why its end is in doubt.

    Examples:
        launch diagnose crash.log
        launch diagnose last
        ssh lab cat train.log | launch diagnose -
    """
    from launcher.cli.output.say import say

    diagnosis = _of(source, host)
    if as_json:
        from launcher.cli.json_output.precision_shapes import DiagnosisShown
        from launcher.cli.output.answer import answer

        name, line, number, why, mend = diagnosis
        answer(DiagnosisShown(name=name, line=line, line_number=number, why=why, remedy=mend))
        return
    where = f"line {diagnosis.number}: {diagnosis.line}" if diagnosis.number else diagnosis.line or ""
    mend, *more = diagnosis.mend.split("\n")
    say(
        f"{diagnosis.name}   {where}".rstrip(),
        f"  why     {diagnosis.why}",
        f"  mend    {mend}",
        *(f"          {line}" for line in more),
    )


def _of(source: str, host: str | None) -> Diagnosis:
    """Diagnose a log or a run. Raises UsageError for an unreadable file, UnknownNameError if no file or run has the name."""
    from launcher.transport.log_diagnosis import LogFile, diagnose_log

    if source == "-":
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool)
            return diagnose_log(LogFile(spool))
    path = Path(source)
    if path.exists() and host is None:
        if path.exists() and not path.is_file():
            raise UsageError(
                f"{source}: is not a regular file\n  a command's output   COMMAND | launch diagnose -"
            )
        try:
            with path.open("rb") as file:
                return diagnose_log(LogFile(file))
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror}\n  example   launch diagnose FILE") from error
    return _of_run(source, host)


def _of_run(word: str, host: str | None) -> Diagnosis:
    from launcher.cli.follow.fetch import fetch
    from launcher.runs.follow.diagnosing import diagnosis_of
    from launcher.transport.log_diagnosis import BY_NAME, Diagnosis

    try:
        local_copy = fetch(word, host)
    except UnknownNameError as error:
        raise UnknownNameError(f"no file '{word}', and {error}") if host is None else error from None
    none = BY_NAME["none"]
    return diagnosis_of(local_copy) or Diagnosis(
        none.name, None, None, f"no attempt of {local_copy.run} has failed", "nothing to do"
    )
