"""Why an attempt's command ended badly: its log, its exit status or signal, and the kernel's word on memory."""

from __future__ import annotations

import re
import signal
from typing import Any

from .diagnose import PROVABLE, Ended, diagnose, prove
from .remedy import preempted

_KILLED = re.compile(r"-9\b|SIGKILL|\bKilled\b|[Ss]ignal 9\b")
_HOLDER = re.compile(r"Process (\d+) has ([\d.]+) ([GM])iB memory in use")
_OURS = re.compile(r"this process has ([\d.]+) ([GM])iB memory in use")
_GIB = {"G": 1.0, "M": 1 / 1024}
# These want the guard's word, or an exception's.
_NOT_BY_A_LOG = ("none", "nan-divergence", "not-learning", *PROVABLE)


def crash(log: bytes, code: int | None, number: int | None, oom_kills: int | None) -> dict[str, Any]:
    """Return the failure of a command that left with `code` or died of signal `number`, by the end of its log.

    `oom_kills` is how many processes the kernel ended for memory meanwhile, None where it does not tell. What no rule
    knows is of class `unknown`.
    """
    proven = prove(log) if code == 1 else None  # so leaves what nobody caught
    is_killed = number == signal.SIGKILL or code == 128 + signal.SIGKILL
    # Somebody else's process may have been ended meanwhile: the count explains a kill, and no exception.
    found = proven or diagnose(log, Ended(code, number, is_killed and bool(oom_kills)))
    failure = {"class": found.name, "line": found.line, "why": found.why, "mend": found.mend}
    if proven is None and found.name in _NOT_BY_A_LOG:
        failure = {**failure, "class": "unknown"}
    if found.name == "host-oom-killed" and oom_kills == 0 and (is_killed or _KILLED.search(found.line or "")):
        failure = {**failure, **preempted(number or signal.SIGKILL)}
    if failure["class"] == "unknown":
        failure["reason"] = "exit-nonzero" if number is None else "killed-by-signal"
    if failure["class"] == "cuda-oom":
        failure["others"] = _others(log.decode("utf-8", "replace"))
    return failure


def _others(log: str) -> str | None:
    """Return who else holds the card of which a log says that its memory is full, where that is more than we do."""
    at = log.rfind("memory in use")
    message = log[max(0, at - 2000) : at + 20] if at >= 0 else ""
    holders = [(pid, float(size) * _GIB[unit]) for pid, size, unit in _HOLDER.findall(message)]
    ours = sum(float(size) * _GIB[unit] for size, unit in _OURS.findall(message))
    if not holders or sum(size for _, size in holders) <= ours:
        return None
    named = ", ".join("process %s with %.1f GiB" % one for one in holders)
    return "others hold the card (%s): end them, or take another card" % named
