"""Precision evidence: how each precision has performed on this host.

    <root>/hosts/<host-id>/evidence/<sha256>.json      of a cluster, hosts/slurm:<name>/
        {"card", "driver", "model", "method", "job", "key", "proof", "failed", "measured", "run", "time"}

Each combination of card, driver, torch build, model and precision has one file. `key` is {"torch", "model",
"trainable", "precision"}: torch's version and three digests, as the worker reports them. If a run failed
before its worker reported a key, only the digest of the precision is known. `proof` is the worker's report of
the first good steps. `failed` is the class of a later failure, or None. A probe returns the evidence of the
job's model (`recall`), so that the next plan starts with a precision that has not failed here.

`measured` holds the measurements of `launch verify` for a job, else None. Each job and workload then has a
separate file, `<sha256>-<sha256>.json`, at most MAX_MEASURED a key. A record with `refuted`, the digest of a
workload, removes the measurements of its precision in that workload: the precision has failed there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Mapping, cast

from . import strict_json
from .files import paths_in, read_text, write_durably
from .strict_json import JsonObject

if TYPE_CHECKING:
    from .run_records import EvidenceRecord, PrecisionRecord, RecalledEvidence

MAX_BYTES = 64 * 1024
MAX_FILES = 1000
MAX_READ = 200  # files that one probe reads
MAX_MEASURED = 16  # the newest measurements of a key that are kept
MAX_RECALLED = 32  # records that one probe returns, and the same number of measurements
MAX_CHARS = 100  # the most characters of each text that one probe returns
FAILURES = ("nan-divergence", "not-learning", "fp16-unscale", "bf16-unsupported", "bf16-dtype-mismatch")
"""The classes of failure that a precision may cause."""
MEASURED = (
    "micro_batch",
    "fits",
    "too_large",
    "cosine",
    "step_s",
    "tokens_per_s",
    "examples_per_s",
    "peak_gb",
)
"""The figures of a measurement, which also has `workload`, the digest of everything that they depend on."""
_COUNTS = {"micro_batch": False, "fits": False, "too_large": True}
"""The figures that are whole numbers above 0, and whether each may be missing.

A client refuses a probe with other values.
"""
_DRIVER = "/proc/driver/nvidia/version"


def keep(folder: str, record: EvidenceRecord) -> str | None:
    """Write a record, replacing an older one of the same key, card and driver. Return its path.

    A measurement replaces only one of the same job and workload. A record that is too large, or that only
    refutes, is not kept (None). The oldest files beyond MAX_MEASURED and MAX_FILES are removed. Raises
    OSError if the disk refuses.
    """
    record = strict_json.decode(strict_json.encode(record))  # a number too large for a float becomes a text
    refuted = record.pop("refuted", None)
    if refuted is not None:
        _remove_measured(folder, record, refuted)
        if record.get("failed") is None:
            return None
    name = _digest({name: record.get(name) for name in ("key", "card", "driver")})
    text = _canonical(record)
    if len(text) > MAX_BYTES:
        return None
    of_key = os.path.join(folder, name + "-")
    measured = record.get("measured")
    if measured is not None:
        name += "-" + _digest({"job": record.get("job"), "workload": measured.get("workload")})
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    write_durably(path, text + "\n")
    kept = _kept(folder)
    _remove_oldest([path for path in kept if path.startswith(of_key)], MAX_MEASURED)
    _remove_oldest(kept, MAX_FILES)
    return path


def _remove_measured(folder: str, record: EvidenceRecord, workload: str) -> None:
    """Remove the measurements of a record's precision in a workload.

    Measurements with another torch, card or driver remain valid.
    """
    same = ("card", "driver", "method", "model")
    model, key = record.get("model"), record["key"]
    is_named = isinstance(model, dict) and model.get("kind") != "local"
    for path in _kept(folder) if os.path.isdir(folder) else ():
        other = _read(path)
        measured, other_key = other.get("measured"), other.get("key")
        if not isinstance(measured, dict) or not isinstance(other_key, dict):
            continue
        is_same_torch = _version(key) in (None, _version(other_key))
        if (
            measured.get("workload") == workload
            and other_key.get("precision") == key.get("precision")
            and is_same_torch
            and all(other.get(name) == record.get(name) for name in same)
            and (is_named or other.get("job") == record.get("job"))
        ):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _version(key: JsonObject) -> str | None:
    torch = key.get("torch")
    return torch.partition("+")[0] if isinstance(torch, str) else None


def _kept(folder: str) -> list[str]:
    return [path for path in paths_in(folder) if path.endswith(".json")]


def _remove_oldest(paths: list[str], most: int) -> None:
    for oldest in sorted(paths, key=_modified)[: max(0, len(paths) - most)]:
        with contextlib.suppress(FileNotFoundError):  # another run's agent was faster
            os.unlink(oldest)


def recall(folder: str, model: Any, *, of_any_driver: bool = False) -> list[RecalledEvidence]:
    """Return earlier evidence about precisions with this model and driver, newest first, measurements last.

    `model` is the plan's, {"kind", "value"} or None. Invalid files are skipped. Set `of_any_driver` for a
    compute node, whose driver is unknown before the job starts.
    """
    present = None if of_any_driver else driver()
    try:
        paths = _kept(folder)
    except OSError:  # the root is not a folder or cannot be read, which the probe reports elsewhere
        return []
    recalled: list[RecalledEvidence] = []
    measured: list[RecalledEvidence] = []
    for path in sorted(paths, key=_modified, reverse=True)[:MAX_READ]:
        record = _read(path)
        if record.get("model") == model and (of_any_driver or record.get("driver") == present):
            entry = _entry(record)
            if entry is not None:
                (measured if "measured" in entry else recalled).append(entry)
    return [*recalled[:MAX_RECALLED], *measured[:MAX_RECALLED]]


def _read(path: str) -> EvidenceRecord:
    """Return the record in a file; empty if it is invalid or not a regular file.

    A FIFO is not waited for, and a link is not followed.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return {}
        record = strict_json.decode(os.read(number, MAX_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(number)
    return cast("EvidenceRecord", record) if isinstance(record, dict) else {}


def _entry(record: EvidenceRecord) -> RecalledEvidence | None:
    """Return a record as a probe reports it; None if a value has the wrong type or is too long."""
    key = record.get("key")
    if not isinstance(key, dict):
        return None
    required = {name: record.get(name) for name in ("card", "method", "job", "run")}
    required["precision"] = key.get("precision")
    optional = {"torch": key.get("torch"), "failed": record.get("failed")}
    moment = record.get("time")
    texts = [*required.values(), *(text for text in optional.values() if text is not None)]
    if not all(isinstance(text, str) and len(text) <= MAX_CHARS for text in texts):
        return None
    if not isinstance(moment, (int, float)) or isinstance(moment, bool) or not 0 <= moment < math.inf:
        return None
    measured = record.get("measured")
    if measured is not None and not is_measured(measured):
        return None
    known = {**required, **optional, "time": float(min(moment, 1e12))}
    return cast("RecalledEvidence", known if measured is None else {**known, "measured": measured})


def is_measured(measured: Any) -> bool:
    """Whether a measurement is valid: required counts above 0, other numbers, a digest for its workload."""
    if not isinstance(measured, dict) or not measured.keys() <= {*MEASURED, "workload"}:
        return False
    counts = {name: measured.get(name) for name in _COUNTS}
    if not all(_COUNTS[name] if count is None else _is_count(count) for name, count in counts.items()):
        return False
    workload = measured.get("workload")
    return (isinstance(workload, str) and len(workload) <= MAX_CHARS) and all(
        value is None
        or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12)
        for name, value in measured.items()
        if name != "workload"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def precision_digest(precision: PrecisionRecord) -> str:
    """Return the digest of a plan's precision without `why`. The worker and the client compute the same."""
    values = {name: value for name, value in precision.items() if name != "why"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(values: Mapping[str, object]) -> str:
    return hashlib.sha256(_canonical(values).encode()).hexdigest()


def driver() -> str | None:
    """Return the version of the loaded NVIDIA driver, None without one. Source: /proc, on Linux only."""
    match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", read_text(_DRIVER) or "")
    return match[0] if match else None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _modified(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0
