"""Why a run's last failed attempt failed: its agent's word where there is one, else its log and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.errors import RunError
from launcher.hosts.log_diagnosis import BY_NAME, Diagnosis, Ended, diagnose
from launcher.runs.json_file import read_json
from launcher.runs.mirror import Mirror

_NO_FAILURE = ("succeeded", "cancelled", "cancel-incomplete")


def last_failure(mirror: Mirror) -> Diagnosis | None:
    """Return why the last attempt that failed did, as far as the mirror has it; None where none has failed.

    Raises RunError where the disk refuses.
    """
    for folder, state, previous in _ended_attempts(mirror):
        if state.get("state") not in _NO_FAILURE:
            evidence = state.get("evidence")
            return _why(folder / "log.txt", evidence if isinstance(evidence, dict) else {}, previous, state)
    return None


def _ended_attempts(mirror: Mirror) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """Yield each ended attempt's folder and state, and what the folder behind it says of its end; the last one first."""
    behind: dict[str, Any] | None = None
    for folder in sorted(mirror.folder.glob("[0-9][0-9][0-9][0-9]*"), reverse=True):
        record, state = read_json(folder / "attempt.json"), read_json(folder / "state.json")
        is_ended = behind is not None or state.get("state") in ("failed", "resuming", *_NO_FAILURE)
        if record.get("kind") == "attempt" and is_ended:
            previous = (behind or {}).get("previous")
            yield folder, state, previous if isinstance(previous, dict) else {}
        behind = record


def _why(path: Path, evidence: dict[str, Any], previous: dict[str, Any], state: dict[str, Any]) -> Diagnosis:
    try:
        log = path.read_bytes()
    except FileNotFoundError:
        log = b""
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}\n  read another   launch diagnose FILE") from error
    if evidence.get("class"):
        return _as_told(log, evidence)
    found = diagnose(log, _ended(evidence, previous))
    if found.name == "none":
        unknown = BY_NAME["unknown"]
        why = f"it ended as {state.get('reason') or 'nobody knows'}, and its log shows no failure"
        return Diagnosis(unknown.name, None, None, why, unknown.mend)
    return found


def _as_told(log: bytes, evidence: dict[str, Any]) -> Diagnosis:
    """Return what the agent said when it happened, with the line's number if the log has that line."""
    name, line = str(evidence["class"]), str(evidence.get("line") or "") or None
    at = log.find(line.encode()) if line else -1
    number = log.count(b"\n", 0, at) + 1 if at >= 0 else None
    known = BY_NAME.get(name, BY_NAME["unknown"])
    why, mend = (
        str(evidence.get(key) or default) for key, default in (("why", known.why), ("mend", known.mend))
    )
    return Diagnosis(name, line, number, why, mend)


def _ended(evidence: dict[str, Any], previous: dict[str, Any]) -> Ended:
    """Return how an attempt ended: by its own agent, else by whoever came behind it (its keeper, its container)."""
    nested = (told.get(key) for told in (evidence, previous) for key in ("keeper", "container"))
    words = [evidence, previous, *(told for told in nested if isinstance(told, dict))]
    numbers = {
        key: next((told[key] for told in words if isinstance(told.get(key), int)), None)
        for key in ("exit", "signal")
    }
    return Ended(**numbers, oom_kills=any(told.get("oom") is True or told.get("oom_kills") for told in words))
