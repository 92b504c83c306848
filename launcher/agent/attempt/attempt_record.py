"""Compose attempt.json, the values that an attempt's script runs with."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence

from ..diagnosis import remedy
from ..liveness.run_state import probe_of
from ..record.rundir import VERSION, RecordFolder, Run, place_of
from ..store import checkpoints, script_checkpoint
from ..system import process
from .hook_parts import imitates_card

if TYPE_CHECKING:
    from ..record.run_records import (
        AdaptationRecord,
        AttemptRecord,
        CardRecord,
        PlanRecord,
        PrecisionRecord,
        PreviousRecord,
        ProfileRecord,
        RecordedRuntime,
        SourceRecord,
        SplitRecord,
        WorkerTrialRecord,
    )


class Basis(NamedTuple):
    """The inputs of an attempt's record.

    `prepared` is the record of how the run was prepared, `runtime` the current runtime, and `checkpoint` the
    checkpoint to resume from. `trial` is the worker's measurement in an attempt of `launch verify`.
    """

    run: Run
    plan: PlanRecord
    prepared: AttemptRecord
    runtime: RecordedRuntime
    in_force: remedy.CurrentChanges
    previous: Optional[PreviousRecord]
    checkpoint: checkpoints.ChosenCheckpoint
    trial: Optional[WorkerTrialRecord] = None


def compose(basis: Basis, folder: RecordFolder, attempt: int) -> AttemptRecord:
    """Return the record of an attempt in this folder: the plan's values with the changes in force."""
    run, plan, changes = basis.run, basis.plan, basis.in_force.changes
    me = process.find(os.getpid())
    rung = int(changes.get("rung", 0))
    ladder: Sequence[Optional[PrecisionRecord]] = plan.get("ladder") or [None]
    precision = ladder[rung]
    split: SplitRecord = {}
    if "micro_batch" in changes:
        split["micro_batch"] = changes["micro_batch"]
    if "accumulation" in changes:
        split["accumulation"] = changes["accumulation"]
    return {
        "version": VERSION,
        "run": run.id,
        "kind": "attempt",
        "folder": folder.number,
        "attempt": attempt,
        "time": time.time(),
        "place_id": place_of(basis.prepared) or process.host_id(),
        "boot_id": process.boot_id(),
        "device": folder.device(),
        "agent": {"pid": os.getpid(), "start": me.start if me else ""},
        "job_id": probe_of(run).job_id(run),
        "runtime": basis.runtime,
        "previous": basis.previous,
        "rung": rung,
        "precision": precision,
        "peak_tflops": _peak_tflops(plan, precision or {}),
        "remedy": basis.in_force.remedy.record() if basis.in_force.remedy is not None else None,
        "changes": changes,
        "rehearsed": plan.get("rehearsed") is True,
        "card": _card(plan["profile"]) if imitates_card(plan) else None,
        "adapt": _adaptation(plan, split.get("accumulation", 0)) if plan.get("adapt") is True else None,
        "trial": basis.trial,
        "guard": "warn" if plan.get("guard") == "warn" else "end",
        "checkpoint": checkpoints.describe(basis.checkpoint),
        "own_checkpoint": _trainers_checkpoint(basis),
        "split": {**plan["split"], **split} if plan.get("split") else None,
        "steps": plan.get("steps"),
        "port": _free_port(),
        "seed": plan.get("seed"),
        "loader_workers": changes.get("loader_workers", plan.get("loader_workers")),
        "activation_checkpointing": changes.get("activation_checkpointing", plan.get("checkpointing", False)),
        "save_every_steps": plan.get("save_every_steps"),
        "save_every_minutes": plan.get("save_every_minutes"),
        "keep_checkpoints": changes.get("keep_checkpoints", plan.get("keep_checkpoints")),
        "method": plan.get("method"),
        "sharding": plan.get("sharding", False),
        "model": _located(basis, plan.get("model"), "model"),
        "teacher": _located(basis, plan.get("teacher"), "teacher"),
        "data": {name: _located(basis, source, name) for name, source in (plan.get("data") or {}).items()},
        "settings": plan.get("settings"),
        "folders": {
            "run": run.path,
            "code": run.code,
            "artifacts": run.artifacts,
            "checkpoints": run.checkpoints,
            "cache": run.cache,
        },
    }


def _trainers_checkpoint(basis: Basis) -> Optional[str]:
    """Return the path of the checkpoint for the start-up hook; None without one."""
    is_asked = (basis.prepared.get("parent") or {}).get("is_trainers") is True
    own = script_checkpoint.for_the_hook(basis.run, basis.plan, is_asked=is_asked)
    return basis.run.code.below(own.path) if own is not None else None


def _adaptation(plan: PlanRecord, accumulation: int) -> AdaptationRecord:
    """Return the settings of the start-up hook's adaptation.

    `split` is true if the plan's batch replaces the script's. `halvings` counts how often that batch was
    halved.
    """
    planned = plan["split"]["accumulation"]
    halvings = (max(accumulation, planned) // planned).bit_length() - 1
    return {"split": "split" in (plan.get("takes") or ()), "halvings": halvings}


def _peak_tflops(plan: PlanRecord, precision: PrecisionRecord) -> Optional[float]:
    """Return the card's published peak rate at a precision; None if it is unknown or the run is rehearsed."""
    if plan.get("rehearsed") is True:
        return None
    compute = precision.get("autocast_dtype") or precision.get("base_dtype")
    wide = "tf32" if precision.get("tf32") else "fp32"
    rate = {"float16": "fp16", "bfloat16": "bf16", "float32": wide}.get(str(compute))
    peak = (plan.get("profile") or {}).get("peak") or {}
    return peak.get(rate) if rate is not None else None


def _card(profile: ProfileRecord) -> CardRecord:
    """Return the worker's description of the card that it imitates, under the name that the driver reports."""
    names = profile.get("probe_names") or [profile["title"]]
    mib = profile.get("memory_mib")  # plans of older versions have only the nominal size
    memory = int(profile["memory_gb"] * 1e9 if mib is None else mib * 2**20)
    return {
        "name": names[0],
        "memory_bytes": memory,
        "capability": profile["capability"],
        "count": profile["count"],
    }


def _located(basis: Basis, source: Optional[SourceRecord], name: str) -> Optional[str]:
    """Return the path or name under which the script finds a source, such as a model or a data set.

    Shipped files are in the run's data folder, in a folder with the name of the source.
    """
    if source is None:
        return None
    if source["kind"] == "host":
        paths = basis.runtime.get("paths") or {}
        return str(paths.get(source["value"], os.path.expanduser(source["value"])))
    if source["kind"] == "name":
        return source["value"]
    folder = os.path.join(basis.run.data, name)
    names = os.listdir(folder) if os.path.isdir(folder) else []  # an empty folder is not shipped
    return os.path.join(folder, *names[:1])  # the client put exactly one entry into it


def _free_port() -> int:
    """Return a port that is free now. If another process takes it first, the next attempt gets another port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
