"""The state of a run: its last record or, if the agent is gone and recorded no end, the verdict of its probe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Sequence

from ..record.run_progress import progress_of
from ..record.rundir import TERMINAL, UNREADABLE, WISHES, RecordFolder, Run, unreadable
from ..record.safe_open import UnreadableError
from . import liveness

if TYPE_CHECKING:
    from ..record.run_records import RecordedRuntime, StateRecord

_LOST = "its later output and metrics, and its end, were not recorded"
_REFUSED = {
    "disk-full": "full: %s" % _LOST,
    "quota": "over its quota: %s" % _LOST,
    "read-only": "read-only: %s" % _LOST,
}
"""The evidence of an agent that left while the disk refused its records, by its last report."""


def runtime_of(run: Run) -> RecordedRuntime:
    """Return the runtime that the run was prepared with: its kind, its interpreter or engine, its cards."""
    runtime = run.prepared().get("runtime")
    return runtime if isinstance(runtime, dict) else {}


def runtime_now(run: Run) -> RecordedRuntime:
    """Return the runtime of a run with its current cards.

    A run whose place assigns the cards has none in its record of preparation.
    """
    runtime = runtime_of(run)
    return runtime if runtime.get("gpus") is None else {**runtime, "gpus": run.cards()}


def probe_of(run: Run) -> liveness.LivenessProbe:
    """Return the LivenessProbe of the kind of runtime that the run was prepared with."""
    return liveness.probe_of(_kind_of(run))


def _kind_of(run: Run) -> str:
    return str(runtime_of(run).get("kind") or liveness.NATIVE)


def state_of(run: Run) -> StateRecord:
    """Return the state of one run; see `states_of`."""
    return states_of([run])[run.id]


def states_of(runs: Sequence[Run]) -> Dict[str, StateRecord]:
    """Return the states of runs by id: the state of the highest folder, or a verdict on the run.

    A run is judged if the folder's lock is free although no end is recorded. Such a run is `resuming` if it is
    alive, coming back or silent, and `interrupted` if it is gone. A gone run whose user asked to stop it is
    `stopped`: a full disk may have had no room for a record of that. A verdict may name another state. In a
    place where the lock of a live run is never seen as held, a run that is not gone keeps its recorded state. A
    record made on another host is returned as written, never judged: its locks mean nothing here. All runs of
    one kind of runtime are judged at once. A run that cannot be read is UNREADABLE and does not affect other
    runs.
    """
    states: Dict[str, StateRecord] = {}
    pending = list(runs)
    while pending:
        unheld: List[_Unheld] = []
        for run in pending:
            try:
                recorded = _recorded(run)
            except OSError as error:  # it was just removed, or we may not read it
                recorded = unreadable(error)
            if isinstance(recorded, _Unheld):
                unheld.append(recorded)
            else:
                states[run.id] = recorded
        verdicts = _judge([candidate.run for candidate in unheld])
        pending = []
        for candidate in unheld:
            try:
                state = _judged(candidate, verdicts[candidate.run.id])
            except OSError as error:
                state = unreadable(error)
            if state is None:
                pending.append(candidate.run)
            else:
                states[candidate.run.id] = state
    return states


def is_unwritten(state: StateRecord) -> bool:
    """Whether a run has ended although no record has its end yet: its agent is gone, and the verdict is an end."""
    return state.get("fate") == liveness.GONE and state["state"] in TERMINAL


def is_silent(state: StateRecord) -> bool:
    """Whether a run is in doubt because its runtime does not answer."""
    return state.get("fate") == liveness.SILENT


class _Unheld(NamedTuple):
    """A run of this host whose lock is free although no end is recorded, with its last folder and that folder's state."""

    run: Run
    last: RecordFolder
    state: StateRecord


def _recorded(run: Run) -> StateRecord | _Unheld:
    """Return the run's state if its record is enough to know it, otherwise the `_Unheld` that needs a verdict."""
    last = run.last()
    if last is None and run.has_lost_folders():
        return unreadable(UnreadableError(run.record, "has lost its first folder"))
    if last is None:
        return {"state": "preparing", "reason": None}
    ended = last.read_state()
    if ended.get("state") in TERMINAL:  # its lock does not matter
        return ended
    run_probe = probe_of(run)
    is_ours = run.has_locks_here(run_probe.place_id())
    is_held = is_ours and run_probe.sees_lock and last.is_locked()
    state = last.read_state() or {"state": "preparing", "reason": None}
    if state["state"] in (*TERMINAL, "waiting") or is_held:  # it may have ended since the first read
        return state
    if (
        not is_ours or run.place_id() is None
    ):  # of another place, or not recorded yet: it cannot be judged here
        return {**state, "elsewhere": True}
    if not os.path.exists(last.state) and run.folder(last.number - 1).is_locked():
        return state  # its writer holds the previous folder until it holds this one
    return _Unheld(run, last, state)


def _judge(runs: Sequence[Run]) -> Dict[str, liveness.RunLiveness]:
    by_kind: Dict[str, List[Run]] = {}
    for run in runs:
        by_kind.setdefault(_kind_of(run), []).append(run)
    verdicts: Dict[str, liveness.RunLiveness] = {}
    for kind, group in by_kind.items():
        verdicts.update(liveness.probe_of(kind).judge(group))
    return verdicts


def _judged(unheld: _Unheld, verdict: liveness.RunLiveness) -> StateRecord | None:
    """Return the state of a run by its verdict; None if an agent has taken it over since its lock was seen free."""
    run, last, state = unheld
    newest = run.last()
    sees_lock = probe_of(run).sees_lock
    if newest is None or newest.number != last.number or (sees_lock and last.is_locked()):
        return None
    latest = last.read_state()
    if latest.get("state") in TERMINAL:
        return latest
    evidence = verdict.evidence
    if state["state"] == UNREADABLE:
        evidence = {**state["evidence"], **(evidence or {})}
    more: StateRecord = {} if evidence is None else {"evidence": evidence}
    if verdict.liveness != liveness.GONE:
        shown = verdict.state or ("resuming" if sees_lock else "")
        derived: StateRecord = {"state": shown} if shown else {}
        return {**state, **derived, "fate": verdict.liveness, **more}
    refused = _REFUSED.get(last.read_heartbeat().get("refused") or "")
    if refused is not None:
        more = {"evidence": {**(evidence or {}), "disk": refused}}
    step, loss, took_s = progress_of(run, is_live=False)
    progress: StateRecord = {"step": step, "loss": loss, "took_s": took_s}
    gone: StateRecord = {**state, **progress, "fate": liveness.GONE, **more}
    reason = WISHES[run.read_wish()]
    if reason is not None:
        return {**gone, "state": "stopped", "reason": reason}
    if verdict.state:
        return {**gone, "state": verdict.state, "reason": verdict.reason}
    return {**gone, "state": "interrupted"}
