"""A one-line summary of a run, for `launch ps` and for a client that attaches without a local copy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Optional, TypedDict, cast

from ..liveness.run_state import is_unwritten, probe_of, runtime_of
from ..liveness.trouble import trouble_of
from ..record.engine_record import EngineRecord
from ..record.record_shape import read_attempt, read_plan
from ..record.run_progress import progress_of
from ..record.rundir import LIVE, TERMINAL, UNREADABLE, Run, unreadable
from ..record.strict_json import JsonObject

if TYPE_CHECKING:
    from ..record.run_records import (
        AttemptRecord,
        Loss,
        ParentRecord,
        RecordedRuntime,
        StateRecord,
        TroubleRecord,
    )

IN_DOUBT = ("resuming", "interrupted", "stop-incomplete", UNREADABLE)
SLURM = "slurm"
"""The runtime kind whose runs wait in a queue before each attempt."""


class _Kind(TypedDict):
    kind: str
    engine: Optional[EngineRecord]


class _Runtime(TypedDict):
    engine: Optional[EngineRecord]
    runtime: _Kind


class RunLine(_Runtime):
    """A run in one line; see `summary`."""

    run: str
    state: str
    reason: Optional[str]
    attempt: Optional[int]
    step: Optional[int]
    steps: Optional[int]
    loss: Optional[Loss]
    grace_s: Optional[float]
    job: Optional[str]
    job_id: Optional[str]
    card: Optional[str]
    evidence: Optional[JsonObject]
    remedy: Optional[JsonObject]
    trouble: Optional[TroubleRecord]
    rehearsed: bool
    parent: Optional[ParentRecord]
    time: Optional[float]
    ended: Optional[float]
    took_s: Optional[float]


def line_of(run: Run, state: StateRecord) -> RunLine:
    """Return the line of a run with this state, or a line that says why the run cannot be read."""
    try:
        return summary(run, state)
    except OSError as error:
        runtime: RecordedRuntime = {}
        with contextlib.suppress(OSError):
            runtime = runtime_of(run)
        return cast("RunLine", {"run": run.id, **unreadable(error), **_kind_and_engine(runtime)})


def summary(run: Run, state: StateRecord) -> RunLine:
    """Return the line of a run with this state.

    `evidence` says why the run is in doubt, or which class of failure ended it. `parent` is the run that it
    continues. Raises OSError if its plan or its first record cannot be read.
    """
    plan = read_plan(run.plan)
    evidence = state.get("evidence")
    last = run.last()
    beat = last.read_heartbeat() if last else {}
    progress = progress_of(run, is_live=state["state"] in LIVE)
    prepared = run.prepared()
    recorded = prepared.get("runtime")
    runtime = recorded if isinstance(recorded, dict) else {}
    if not prepared and run.numbers():
        for path in (run.prepared_record, run.folder(1).attempt):
            read_attempt(path)  # raises an error that says why the record cannot be read
    return {
        "run": run.id,
        "state": state["state"],
        "reason": state.get("reason"),
        "attempt": state.get("attempt"),
        "step": progress.step,
        "steps": plan.get("steps"),
        "loss": progress.loss,
        "grace_s": beat.get("grace_s"),
        "job": plan.get("job"),
        "job_id": probe_of(run).job_id(run),
        "card": (plan.get("profile") or {}).get("title"),
        **_kind_and_engine(runtime),
        "evidence": evidence
        if state["state"] in (*IN_DOUBT, "waiting")
        or {"class", "doubt", "lingered", "service", "disk"} & (evidence or {}).keys()
        else None,
        "remedy": _last_remedy(run),
        "trouble": trouble_of(run, state, asks=True),
        "rehearsed": plan.get("rehearsed") is True,
        "parent": prepared.get("parent"),
        "time": prepared.get("time"),
        "ended": state.get("time") if state["state"] in TERMINAL and not is_unwritten(state) else None,
        "took_s": progress.took_s,
    }


def _kind_and_engine(runtime: RecordedRuntime) -> _Runtime:
    has_name = bool((runtime.get("engine") or {}).get("name"))
    engine = runtime["engine"] if has_name else None
    return {"engine": engine, "runtime": {"kind": runtime.get("kind") or "native", "engine": engine}}


def _last_remedy(run: Run) -> JsonObject | None:
    """Return the last remedy, with the failed attempt and its step.

    The next attempt may have recorded the same remedy: its values then take precedence.
    """
    following: AttemptRecord = {}
    for folder in run.newest():
        state = folder.read_state()
        if state.get("remedy"):
            answered = {"attempt": state.get("attempt"), "step": state.get("step")}
            return {**answered, **state["remedy"], **(following.get("remedy") or {})}
        following = folder.read_attempt()
    return None
