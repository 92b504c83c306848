"""Diagnose a run's last failed attempt: use the agent's diagnosis, else the attempt's log and the way it ended.

The agent's judgement takes precedence, so the diagnosis never contradicts the run's own end. For an
interrupted or stopped run that state is the diagnosis, instead of an unknown failure.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.backends.registry import backend_of
from launcher.copy.local_copy import LocalCopy
from launcher.runs.follow.evidence import disk_refused, of_service, words
from launcher.transport.log_diagnosis import BY_NAME, Diagnosis, LogFile, ProcessEnd, diagnose
from launcher.upload.excluded_files import explained
from launcher.values.record import Reason, RunState, State, in_todays_words

_REASONS = ("exit-nonzero", "killed-by-signal")
"""The agent's reasons for a failure of the class `unknown`."""
_STOPPED = ("stopped", "stop-incomplete")
_NO_FAILURE = ("succeeded", *_STOPPED)
_KNOWN = BY_NAME.keys() - {"none", "unknown"}


def diagnosis_of(local_copy: LocalCopy) -> Diagnosis | None:
    """Return the diagnosis of the last failed attempt in the local copy, or the agent's doubt about a run that succeeded.

    None if neither exists. For an interrupted run the diagnosis is the interruption; for a stopped run it is
    the stop, unless one of its attempts failed for a known reason. For a run that a scheduler or service ended
    or could not start, it is the report of that service. Raises RunError if a log cannot be read.
    """
    state = local_copy.told or local_copy.state()
    if local_copy.told is not None and local_copy.told.state == State.INTERRUPTED:
        return _interrupted(local_copy, local_copy.told)
    if state is not None and (by_service := _by_service(local_copy, state)) is not None:
        return by_service
    known, unknown = _last_failure(local_copy)
    if (
        known is None
        and state is not None
        and state.state == State.FAILED
        and _mapping(state.evidence).get("class")
    ):  # no attempt has failed: the run could not continue, or none began
        return _as_reported(local_copy, None, _mapping(state.evidence), {"reason": state.reason})
    if known is not None:
        return known
    if state is not None and state.state in _STOPPED and (disk := disk_refused(state.evidence)) is not None:
        why = f"it was stopped while its host's disk was {disk}"
        return Diagnosis("stopped", None, None, why, _room(local_copy))
    if state is not None and state.state in _STOPPED:
        return Diagnosis("stopped", None, None, "it was stopped, and did not fail", "nothing to do")
    if unknown is not None and state is not None and state.state == State.INTERRUPTED:
        return _interrupted(local_copy, state)
    return unknown or _of_success(local_copy)


def _room(local_copy: LocalCopy) -> str:
    host = local_copy.record.plan().host or "HOST"
    return f"make room   launch gc --host {host}     or   launch rm RUN"


def _interrupted(local_copy: LocalCopy, state: RunState) -> Diagnosis:
    if said := of_service(state.evidence):
        mend = f"launch recover {local_copy.short}     the next session continues from the last checkpoint"
        return Diagnosis("interrupted", None, None, f"the run is interrupted: {said}", mend)
    seen = f"; {', '.join(found)}" if (found := words(state.evidence)) else ""
    why = f"the run is interrupted: its agent is gone (killed, rebooted or removed){seen}"
    also = "its training may still run: recover ends it first, as stop does"
    mend = f"launch recover {local_copy.short}     {also}"
    return Diagnosis("interrupted", None, None, why, mend)


def _by_service(local_copy: LocalCopy, state: RunState) -> Diagnosis | None:
    """Return the diagnosis from the scheduler or service that starts a host's runs; None if it reports none."""
    if (entry := local_copy.entry) is None:
        return None
    said = of_service(state.evidence)
    return backend_of(entry.host).running.service_diagnosis(
        local_copy, state, said, lambda: _last_reason(local_copy)
    )


def _last_reason(local_copy: LocalCopy) -> object:
    """Return the reason why the last attempt ended, from its state; None if no attempt has ended."""
    _, last, _ = next(_ended_attempts(local_copy), _EndedAttempt("", {}, {}))
    return last.get("reason")


def _of_success(local_copy: LocalCopy) -> Diagnosis | None:
    """Return the doubt that the agent recorded about the last attempt, if that succeeded."""
    folder, state, _ = next(_ended_attempts(local_copy), _EndedAttempt("", {}, {}))
    evidence = state.get("evidence")
    doubt = evidence.get("doubt") if isinstance(evidence, dict) else None
    if state.get("state") != "succeeded" or not isinstance(doubt, dict) or not doubt.get("class"):
        return None
    return _as_reported(local_copy, folder, doubt, state)


def _last_failure(local_copy: LocalCopy) -> tuple[Diagnosis | None, Diagnosis | None]:
    """Return the diagnosis of the last attempt with a known failure, or else of the last with an unknown one.

    The result is (known failure, None), (None, unknown failure), or (None, None).
    """
    unknown = None
    for attempt in _ended_attempts(local_copy):
        state = attempt.state
        evidence, failure = (_mapping(state.get(key)) for key in ("evidence", "failure"))
        if not evidence.get("class") and failure.get("class"):  # judged before its agent died
            evidence = {**evidence, **failure}
        is_pause = state.get("state") == "waiting" or state.get("reason") == Reason.SESSION_LIMIT
        if state.get("state") in _NO_FAILURE or (is_pause and not evidence.get("class")):
            continue
        evidence = explained(local_copy.files, evidence)
        found = _why(local_copy, attempt, evidence)
        if evidence.get("class") or state.get("state") == "failed" or found.name in _KNOWN:
            return found, None
        unknown = unknown or found
    return None, unknown


class _EndedAttempt(NamedTuple):
    """The folder and the last state of an attempt, and the record of its end in the next attempt's folder."""

    folder: str
    state: Mapping[str, Any]
    previous: Mapping[str, Any]


def _ended_attempts(local_copy: LocalCopy) -> Iterator[_EndedAttempt]:
    """Yield each attempt that has ended, the last one first."""
    behind: Mapping[str, Any] | None = None
    for folder in reversed(local_copy.files.numbered()):
        record, state = (local_copy.files.read_json(f"{folder}/{name}.json") for name in ("attempt", "state"))
        state["state"] = in_todays_words(state.get("state"))
        is_ended = behind is not None or state.get("state") in ("failed", "resuming", *_NO_FAILURE)
        if record.get("kind") == "attempt" and is_ended:
            yield _EndedAttempt(folder, state, _mapping((behind or {}).get("previous")))
        behind = record


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def _log_of(local_copy: LocalCopy, folder: str) -> Iterator[LogFile]:
    """Open an attempt's log; a missing log is empty. Raises RunError if it cannot be read."""
    path = f"{folder}/log.txt"
    with local_copy.record.opened(path) if local_copy.files.exists(path) else io.BytesIO() as file:
        yield LogFile(file)


def _why(local_copy: LocalCopy, attempt: _EndedAttempt, evidence: Mapping[str, Any]) -> Diagnosis:
    folder, state, previous = attempt
    if evidence.get("class"):
        return _as_reported(local_copy, folder, evidence, state)
    with _log_of(local_copy, folder) as log:
        found = diagnose(log, _ended(evidence, previous))
    if found.name == "none":
        unknown = BY_NAME["unknown"]
        why = f"it ended as {state.get('reason') or 'an unknown reason'}, and its log shows no failure"
        return Diagnosis(str(state.get("reason") or unknown.name), None, None, why, unknown.mend)
    return found


def _as_reported(
    local_copy: LocalCopy, folder: str | None, evidence: Mapping[str, Any], state: Mapping[str, Any]
) -> Diagnosis:
    """Return the agent's diagnosis, with the line's number if the log in a folder contains that line."""
    name, line = str(evidence["class"]), str(evidence.get("line") or "") or None
    number = None
    if line is not None and folder is not None:
        with _log_of(local_copy, folder) as log:
            number = log.number_of(line.encode())
    known = BY_NAME.get(name, BY_NAME["unknown"])
    why, mend = (
        str(evidence.get(key) or default) for key, default in (("why", known.why), ("mend", known.mend))
    )
    reason = state.get("reason")
    return Diagnosis(reason if name == "unknown" and reason in _REASONS else name, line, number, why, mend)


def _ended(evidence: Mapping[str, Any], previous: Mapping[str, Any]) -> ProcessEnd:
    """Return the end of an attempt: from its agent, else from the next attempt's folder, its keeper or its container."""
    nested = (report.get(key) for report in (evidence, previous) for key in ("keeper", "container"))
    reports = [evidence, previous, *(report for report in nested if isinstance(report, dict))]
    numbers = {
        key: next((report[key] for report in reports if isinstance(report.get(key), int)), None)
        for key in ("exit", "signal")
    }
    return ProcessEnd(
        **numbers, oom_kills=any(report.get("oom") is True or report.get("oom_kills") for report in reports)
    )
