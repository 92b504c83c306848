"""Find why an attempt's command failed, from its log, its exit status or signal, and the OOM kills."""

from __future__ import annotations

import re
import signal

from .cause_text import CauseText
from .diagnose import PROVABLE, ProcessEnd, diagnose, prove
from .failures import BY_NAME
from .good_exit import read_good_exit
from .remedy import AttemptFailure, preempted
from .specific_causes import words_of_end

_WITH = re.compile(
    r"launch(?: …)?(?: --with (?:'[^']*'|[^\s',;…]+))+(?: …(?: +or a line in requirements\.txt)?)?"
)
_PACKAGE = re.compile(r"--with ('[^']*'|[^\s',;…]+)")
_KILLED = re.compile(r"-9\b|SIGKILL|\bKilled\b|[Ss]ignal 9\b")
_HOLDER = re.compile(r"Process (\d+) has ([\d.]+) ([GM])iB memory in use")
_OURS = re.compile(r"this process has ([\d.]+) ([GM])iB memory in use")
_ALLOCATED = re.compile(r"Of the allocated memory ([\d.]+) ([GM])iB is allocated by PyTorch")
_GIB = {"G": 1.0, "M": 1 / 1024}
# A log is not enough for these: they need the worker's guard or an exception.
_NOT_BY_A_LOG = ("none", "nan-divergence", "not-learning", *PROVABLE)


def crash(log: bytes, code: int | None, number: int | None, oom_kills: int | None) -> AttemptFailure:
    """Return the failure of a command that exited with `code` or died of signal `number`.

    `log` is the end of its log. `oom_kills` is the number of processes that the kernel killed for lack of
    memory while it ran, None if the kernel does not report it. A failure that matches no rule has the class
    `unknown`.
    """
    proven = prove(log) if code == 1 else None  # the exit status of an uncaught exception
    is_killed = number == signal.SIGKILL or code == 128 + signal.SIGKILL
    # The killed process may have been another user's: the count explains a SIGKILL, not an exception.
    diagnosis = proven or diagnose(log, ProcessEnd(code, number, is_killed and bool(oom_kills)))
    if proven is None and diagnosis.name in PROVABLE:
        # A script that catches its error prints it as its last line.
        caught = read_good_exit(log).failure
        proven = caught if caught is not None and _is_last(log, caught.line) else None
    failure = AttemptFailure(diagnosis.name, diagnosis.line, diagnosis.why, diagnosis.mend)
    if proven is None and diagnosis.name in _NOT_BY_A_LOG:
        words = (
            words_of_end(code, number)
            if diagnosis.name == "none"
            else CauseText(diagnosis.why, diagnosis.mend)
        )
        failure = failure._replace(name="unknown", why=words.why, mend=words.mend)
    is_by_signal = is_killed or _KILLED.search(diagnosis.line or "")
    if diagnosis.name == "host-oom-killed" and oom_kills == 0 and is_by_signal:
        failure = preempted(number or signal.SIGKILL)._replace(line=diagnosis.line)
    if failure.name == "unknown":
        failure = failure._replace(reason="exit-nonzero" if number is None else "killed-by-signal")
    if failure.name == "cuda-oom":
        failure = failure._replace(others=_others(log.decode("utf-8", "replace")))
    return failure


def _is_last(log: bytes, line: str | None) -> bool:
    """Return whether a line is the last one of a log."""
    last = log.decode("utf-8", "replace").rstrip().rpartition("\n")[2]
    return line is not None and line in last


def with_own_packages(failure: AttemptFailure, environment: str | None) -> AttemptFailure:
    """Return a failure whose advice fits a run for which launch installs nothing, so that it refuses `--with`.

    `environment` is the folder of the host's own environment, None for the user's own image.
    """
    pip = "in your image   pip" if environment is None else "on the host   %s/bin/python -m pip" % environment
    mend = _WITH.sub(
        lambda found: "%s install %s" % (pip, " ".join(_PACKAGE.findall(found[0]))), failure.mend or ""
    )
    return failure._replace(mend=mend) if mend != failure.mend else failure


def shared_file_refused(failure: AttemptFailure, path: str) -> AttemptFailure:
    """Return a failure with the class of a refused write to a large file that runs share.

    `path` is the path of the file in the folder of the code.
    """
    row = BY_NAME["shared-file-refused"]
    return failure._replace(name=row.name, why=row.why, mend=row.mend.replace("model.pt", path), reason=None)


def _others(log: str) -> str | None:
    """Return the other processes that fill the card, from torch's message; None if this process uses more."""
    at = log.rfind("memory in use")
    message = log[max(0, at - 2000) : at + 200] if at >= 0 else ""
    holders = {pid: float(size) * _GIB[unit] for pid, size, unit in _HOLDER.findall(message)}
    known = [float(size) * _GIB[unit] for form in (_OURS, _ALLOCATED) for size, unit in form.findall(message)]
    ours = max(known, default=0.0)
    if not _OURS.search(message):  # in a container torch names its own process like any other
        own = [pid for pid, size in holders.items() if size >= ours > 0]
        holders.pop(min(own, key=holders.__getitem__, default=""), None)
    if not holders or sum(holders.values()) <= ours:
        return None
    names = ", ".join("process %s with %.1f GiB" % holder for holder in holders.items())
    return "other processes use the card (%s): end them, or use another card" % names
