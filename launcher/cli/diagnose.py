"""diagnose: why a log ended as it did, and what mends it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptFlag, HostOption, JsonFlag
from launcher.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from launcher.hosts.log_diagnosis import Diagnosis


def diagnose(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE|-|RUN", help="A log's file, - for standard input, or a run."),
    ] = "last",
    host: HostOption = None,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Say why a log, or a run's last failed attempt, failed: the class, the line that proves it, why, what mends it.

    Examples:  launch diagnose crash.log     ssh lab cat train.log | launch diagnose -     launch diagnose last
    """
    from launcher.cli.say import say

    found = _of(source, host)
    if as_json:
        values = {
            "version": 1,
            "class": found.name,
            "line": found.line,
            "line_number": found.number,
            "why": found.why,
            "remedy": found.mend,
        }
        print(json.dumps(values))
        return
    where = f"line {found.number}: {found.line}" if found.number else found.line or ""
    say(f"{found.name}   {where}".rstrip(), f"  why     {found.why}", f"  mend    {found.mend}")


def _of(source: str, host: str | None) -> Diagnosis:
    """Return what a log or a run says. Raises UsageError for a file that cannot be read, UnknownNameError for neither."""
    from launcher.hosts.log_diagnosis import diagnose as read

    if source == "-":
        return read(sys.stdin.buffer.read())
    path = Path(source)
    if path.exists() and host is None:
        try:
            return read(path.read_bytes())
        except OSError as error:
            raise UsageError(
                f"{source}: {error.strerror}\n  name a log's file   launch diagnose FILE"
            ) from error
    return _of_run(source, host)


def _of_run(word: str, host: str | None) -> Diagnosis:
    from launcher.cli.fetch import fetch
    from launcher.hosts.log_diagnosis import BY_NAME, Diagnosis
    from launcher.runs.diagnosing import last_failure

    try:
        mirror = fetch(word, host)
    except UnknownNameError as error:
        raise UnknownNameError(f"no file '{word}', and {error}") if host is None else error from None
    none = BY_NAME["none"]
    return last_failure(mirror) or Diagnosis(
        none.name, None, None, f"no attempt of {mirror.run} has failed", none.mend
    )
