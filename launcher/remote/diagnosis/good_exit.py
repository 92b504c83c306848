"""Judge a command that ended with exit status 0 from its log: whether it failed all the same, or leaves a doubt.

Many scripts catch an error, print it, and end as if nothing had happened. Only what leaves no doubt is a failure: an
error of precision near the end of the log. Anything else is a doubt, which is shown with the run's success.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from .diagnose import PROVABLE, Diagnosis, Ended, diagnose
from .logscan import LogScanner

END_LINES = 12
"""Lines with text that may follow an error which ended the work: a traceback's end, a farewell. After more, work went on."""
_NO_DOUBT = ("none", "unknown", "preempted", "ssh-connection-lost")
"""Classes that say nothing about a command that ended by itself with exit status 0."""


class Doubt(NamedTuple):
    """Why a run that ended with exit status 0 may not have done its work: a class, the line that shows it, the reason."""

    name: str
    line: Optional[str]
    why: str

    def record(self) -> Dict[str, Optional[str]]:
        """Return the doubt as a run's evidence holds it."""
        return {"class": self.name, "line": self.line, "why": self.why}


NO_STEP = Doubt("no-step", None, "a training began, and made no step")


class Reading(NamedTuple):
    """What a log shows: a failure, a doubt, or neither."""

    failure: Optional[Diagnosis] = None
    doubt: Optional[Doubt] = None


def read_good_exit(log: bytes) -> Reading:
    """Read the end of the log of a command that ended with exit status 0."""
    found = diagnose(log, Ended(exit=0))
    if found.name in _NO_DOUBT or found.number is None or _is_overcome(log, found.number):
        return Reading()
    if found.name in PROVABLE:
        return Reading(failure=found)
    why = "the log ends with this error, although the exit status is 0"
    return Reading(doubt=Doubt(found.name, found.line, why))


def _is_overcome(log: bytes, number: int) -> bool:
    """Whether line `number` is itself a metric, which is judged by its value, or work went on after it."""
    lines = log.split(b"\n")
    after = [line for line in lines[number:] if line.strip()]
    return len(after) > END_LINES or _has_metrics([lines[number - 1]]) or _has_metrics(after)


def _has_metrics(lines: List[bytes]) -> bool:
    scanner = LogScanner()
    return bool(scanner.feed(b"\n".join([*lines, b""])) or scanner.finish())
