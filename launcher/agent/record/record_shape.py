"""The shapes of the records in a run's folders, where a job may have written anything.

A record of another shape is refused as a whole, with a reason in words. A reader, and the client after it,
may then use the values without checking them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, cast

from . import strict_json
from .safe_open import UnreadableError, read_regular
from .strict_json import JsonObject

if TYPE_CHECKING:
    from .run_records import AttemptRecord, EvidenceRecord, HeartbeatRecord, PlanRecord, StateRecord

MAX_BYTES = 8 << 20
MAX_PARTS = 200_000
"""The most values in a record, approximately: many values take long to read."""
MAX_DEPTH = 24
MAX_CHARS = 100_000
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_LONG_NUMBER = b"0" * 400

_WORDS_BEFORE = {
    "cancelled": "stopped",
    "cancel-incomplete": "stop-incomplete",
    "stopped-by-user": "by-user",
    "cancelled-by-user": "by-user-now",
}
"""State and reason names in records written before 2026-11-23, and their present names."""

Check = Callable[[Any], bool]
Shape = Dict[str, Check]


def read_record(path: str, shape: Shape) -> JsonObject:
    """Return a record of this shape; empty if it is missing or empty. Raises UnreadableError, and OSError."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    if not data.strip():  # empty after a crash of the host
        return {}
    if _LONG_NUMBER in data.translate(_DIGITS):  # such a number takes long to parse
        raise UnreadableError(path, "has a number of more than 400 digits")
    if sum(map(data.count, (b"{", b"[", b","))) > MAX_PARTS:
        raise UnreadableError(path, "has more than %d parts" % MAX_PARTS)
    try:
        record = strict_json.decode(data)
    except ValueError as error:
        is_deep = "deep" in str(error)
        raise UnreadableError(path, "is nested too deeply" if is_deep else "is not JSON") from None
    if not isinstance(record, dict):
        raise UnreadableError(path, "is not a JSON object")
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and not _is_shallow(record, MAX_DEPTH):
        raise UnreadableError(path, "is nested too deeply")
    for name, check in shape.items():
        value = record.get(name)
        if value is not None and not check(value):
            raise UnreadableError(path, "has an invalid value of %r" % name)
    return record


def read_plan(path: str) -> PlanRecord:
    """Return a plan; empty if it is missing or empty. Raises UnreadableError, and OSError."""
    return cast("PlanRecord", read_record(path, PLAN))


def read_attempt(path: str) -> AttemptRecord:
    """Return the record of an attempt; empty if it is missing or empty. Raises UnreadableError, and OSError."""
    return cast("AttemptRecord", read_record(path, ATTEMPT))


def read_heartbeat(path: str) -> HeartbeatRecord:
    """Return a heartbeat; empty if it is missing or empty. Raises UnreadableError, and OSError."""
    return cast("HeartbeatRecord", read_record(path, HEARTBEAT))


def read_precision(path: str) -> EvidenceRecord:
    """Return an attempt's precision evidence; empty if missing or empty. Raises UnreadableError, OSError."""
    return cast("EvidenceRecord", read_record(path, PRECISION))


def read_state(path: str) -> StateRecord:
    """Return a state with this version's names; empty if missing. Raises UnreadableError, and OSError."""
    record = read_record(path, STATE)
    if record and not isinstance(record.get("state"), str):
        raise UnreadableError(path, "holds no state")
    words = {
        name: _WORDS_BEFORE[record[name]] for name in ("state", "reason") if record.get(name) in _WORDS_BEFORE
    }
    return cast("StateRecord", {**record, **words})


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(
        _is_shallow(part, levels - 1) for part in inner if isinstance(part, (dict, list))
    )


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_CHARS


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) <= 2**53


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e12


def is_figure(value: Any) -> bool:
    """Whether a value is a loss: a number, or `nan`, `inf` or `-inf` as text."""
    return type(value) in (int, float) or _text(value)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _processes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and _whole(one.get("pid")) and _text(one.get("start")) for one in value
    )


def _path(value: Any) -> bool:
    return _text(value) and value.startswith("/") and "\0" not in value


def table_of(shape: Shape, *, required: tuple[str, ...] = ()) -> Check:
    """Return a check for a table in which each named value is missing or passes its own check."""

    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(value.get(name) is not None for name in required)
            and all(value.get(name) is None or one(value[name]) for name, one in shape.items())
        )

    return check


is_event: Check = table_of(
    {"kind": _text, "rank": _whole, "step": _whole, "time": _number, "values": _table},
    required=("kind", "time"),
)
STATE: Shape = {
    "state": _text,
    "reason": _text,
    "attempt": _whole,
    "step": _whole,
    "begins_at": _whole,
    "loss": is_figure,
    "checkpoint": _whole,
    "time": _number,
    "took_s": _number,
    "save_s": _number,
    "rehearsed": _flag,
    "consumed": _texts,
    "evidence": table_of({"remaining": _processes, "lost": _texts}),
    "remedy": table_of({"changes": _table}),
    "failure": table_of({"class": _text, "since": _whole, "needs": _whole}),
    "trial": _table,
    "sizes": _table,
}
RUNTIME: Shape = {
    "kind": _text,
    "interpreter": _text,
    "engine": table_of({"name": _text, "socket": _path, "program": _path, "sudo": _flag}),
    "gpus": _texts,
    "any_of": _texts,
    "paths": _table,
    "rented_until": _number,
    "rented_uptime": _number,
    "rented_boot": _text,
}
ATTEMPT: Shape = {
    "kind": _text,
    "place_id": _text,
    "host_id": _text,
    "boot_id": _text,
    "locks": _text,
    "agent_folder": _text,
    "by": _text,
    "time": _number,
    "device": _whole,
    "agent": table_of({"pid": _whole, "start": _text}),
    "job_id": _text,
    "runtime": table_of(RUNTIME),
    "parent": table_of(
        {"run": _text, "checkpoint": _text, "step": _whole, "is_trainers": _flag},
        required=("run", "checkpoint", "step"),
    ),
    "changes": _table,
}
SEALED: Shape = {"manifests": _texts}
HEARTBEAT: Shape = {
    "monotonic_s": _number,
    "ran_s": _number,
    "took_s": _number,
    "grace_s": lambda value: _number(value) and 0 <= value <= 86400,
    "step": _whole,
    "loss": is_figure,
    "refused": _text,
    "silent_s": _number,
    "doing": _text,
}
PRECISION: Shape = {
    "key": _table,
    "driver": _text,
    "proof": _table,
    "failed": _text,
    "measured": _table,
    "refuted": _text,
    "time": _number,
}
PLAN: Shape = {
    "job": _text,
    "steps": _whole,
    "profile": table_of({"title": _text}),
    "image": table_of({"name": _text}),
    "environment": table_of({"name": _text}),
}
