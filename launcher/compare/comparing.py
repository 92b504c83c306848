"""Compare runs by their local copies: differences, results and curves. No host is contacted."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.text import printable
from launcher.compare.code_differences import (
    CODE,
    FileDifference,
    Manifest,
    TreeDifference,
    file_differences,
    tree_differences,
    tree_digests,
)
from launcher.compare.compared_curves import ComparedLine, Curves, check_free, curves_of, draw_curves
from launcher.copy.local_copy import LocalCopy
from launcher.copy.record_sync import PLAN
from launcher.copy.run_files import RunFiles
from launcher.errors import BadFileError, RunError
from launcher.metrics.ancestry import joined
from launcher.metrics.metric_results import NO_GOALS, Goal, MetricResult, results
from launcher.planning.plan_differences import Difference, plan_differences
from launcher.runs.follow.precision_report import known_precision
from launcher.upload import upload_record
from launcher.values.record import is_terminal

_PLANNED_TORCH = ("environment.torch", "image.torch")
NO_LABELS: Mapping[str, str] = {}
_MAX_IN_LEGEND = 2
_MAX_IN_NAME = 4


class ComparedRun(NamedTuple):
    """One of the runs. A value that is not on record here is None.

    `seconds` is the duration; for a run that had not ended, the duration at the host's last answer.
    `precision` and `torch` are those observed in the run. `code` is the digest of the code that
    was sent. `has_manifest`: the list of sent files is on record.
    """

    local_copy: LocalCopy
    job: str | None
    host: str | None
    card: str | None
    rehearsed: bool
    has_plan: bool
    has_manifest: bool
    state: str | None
    reason: str | None
    attempts: int | None
    step: int | None
    steps: int | None
    seconds: float | None
    precision: str | None
    torch: str | None
    code: str | None
    metrics: Mapping[str, MetricResult]
    curves: Curves

    @property
    def run(self) -> str:
        """The run's id."""
        return self.local_copy.run

    @property
    def has_ended(self) -> bool:
        """Whether no further attempt follows, by the local record."""
        return self.state is not None and is_terminal(self.state)


class Comparison(NamedTuple):
    """Runs in the given order, and their differences: values of plans, sent trees, files of the code.

    Each difference has a value for every run. A value that is not on record counts as no difference.
    """

    runs: tuple[ComparedRun, ...]
    plan: tuple[Difference, ...]
    trees: tuple[TreeDifference, ...]
    files: tuple[FileDifference, ...]


def compare(local_copies: Sequence[LocalCopy], goals: Mapping[str, Goal] = NO_GOALS) -> Comparison:
    """Return the comparison of some runs, from their local records. `goals` set the better direction of some metrics."""
    plans = [_plan(local_copy) for local_copy in local_copies]
    manifests = [
        sent.manifest if (sent := upload_record.read(local_copy)) else None for local_copy in local_copies
    ]
    runs = tuple(map(functools.partial(_compared, goals), local_copies, plans, manifests))
    differences = plan_differences(plans)
    if len({run.torch for run in runs}) > 1:
        differences = [one for one in differences if one.key not in _PLANNED_TORCH]
    return Comparison(
        runs, tuple(differences), tuple(tree_differences(manifests)), tuple(file_differences(manifests))
    )


def _plan(local_copy: LocalCopy) -> Mapping[str, Any] | None:
    """Return a run's plan with the defaults of this version, or as recorded if invalid; None if it is missing."""
    record = local_copy.files.read_json(PLAN)
    try:
        return local_copy.whole_plan().model_dump(mode="json") if record else None
    except BadFileError:
        return record


def _compared(
    goals: Mapping[str, Goal],
    local_copy: LocalCopy,
    plan: Mapping[str, Any] | None,
    manifest: Manifest | None,
) -> ComparedRun:
    summary, state, report = local_copy.record.plan(), local_copy.state(), known_precision(local_copy)
    measured = joined(local_copy)
    attempts = [attempt.attempt for attempt in report.attempts] if report is not None else []
    torch = next((one.torch for one in reversed(report.attempts) if one.torch), None) if report else None
    return ComparedRun(
        local_copy,
        job=summary.job,
        host=summary.host or _host(local_copy),
        card=summary.card,
        rehearsed=summary.rehearsed,
        has_plan=plan is not None,
        has_manifest=manifest is not None,
        state=state.state if state is not None else None,
        reason=state.reason if state is not None else None,
        attempts=max(attempts) if attempts else state.attempt if state is not None else None,
        step=local_copy.record.last_step().step,
        steps=summary.steps,
        seconds=local_copy.took_s(),
        precision=report.words if report is not None else None,
        torch=torch or _planned_torch(plan or {}),
        code=tree_digests(manifest or {}).get(CODE),
        metrics=results(local_copy.run, measured, goals),
        curves=curves_of([point for _, point in measured]),
    )


def _host(local_copy: LocalCopy) -> str | None:
    try:
        return local_copy.host().name
    except RunError:
        return None


def _planned_torch(plan: Mapping[str, Any]) -> str | None:
    for key in ("environment", "image"):
        made = plan.get(key)
        if isinstance(made, dict) and isinstance(made.get("torch"), str):
            return str(made["torch"])
    return None


def picture_of(local_copies: Sequence[LocalCopy]) -> Path:
    """Return the path of the picture of some runs: in the folder `compared`, beside the runs' folders."""
    names = [local_copy.short for local_copy in local_copies]
    if len(names) > _MAX_IN_NAME:
        digest = hashlib.sha256(" ".join(local_copy.run for local_copy in local_copies).encode()).hexdigest()[
            :8
        ]
        names = [names[0], "and", str(len(names) - 1), "more", digest]
    return local_copies[0].folder.parent / "compared" / f"{'-'.join(names)}.png"


def draw(comparison: Comparison, files: RunFiles, name: str, labels: Mapping[str, str] = NO_LABELS) -> bool:
    """Write a picture with the curves of all runs into a folder. If no run has curves, write nothing and return False.

    `labels` has texts for the legend by run id. By default the legend shows the settings in which a run
    differs. Raises RunError if the file exists but is not such a picture, and OSError if it cannot be written.
    """
    lines = lines_to_draw(comparison, labels)
    if lines:
        check_free(files, name)
        files.write(name, draw_curves(lines, _title(comparison, len(lines))))
    return bool(lines)


def lines_to_draw(comparison: Comparison, labels: Mapping[str, str] = NO_LABELS) -> list[ComparedLine]:
    """Return the curves of the runs that have any: all over the steps, or all over time if one run's log gives no steps."""
    drawn = [run for run in comparison.runs if run.curves.panels]
    if not all(run.curves.has_steps for run in drawn):
        drawn = [run._replace(curves=_over_time(run)) for run in drawn]
    words = {**_legend_words(comparison), **labels}
    return [
        ComparedLine(f"{run.local_copy.short} {words[run.local_copy.run]}".strip(), run.curves)
        for run in drawn
    ]


def _over_time(run: ComparedRun) -> Curves:
    if not run.curves.has_steps:
        return run.curves
    return curves_of([point for _, point in joined(run.local_copy)], over_time=True)


def _legend_words(comparison: Comparison) -> dict[str, str]:
    """Return the settings in which each run differs, or its job, card and host if no settings differ."""
    settings = [one for one in comparison.plan if one.group == "settings"][:_MAX_IN_LEGEND]
    names = [one for one in comparison.plan if one.key in ("job", "profile", "host")][:_MAX_IN_LEGEND]
    shown = settings or names
    return {
        run.local_copy.run: ", ".join(
            f"{one.key.rpartition('.')[2]}={one.words[number]}" if one in settings else one.words[number]
            for one in shown
        )
        for number, run in enumerate(comparison.runs)
    }


def _title(comparison: Comparison, drawn: int) -> str:
    """Return the number of drawn runs and the values common to all runs: `4 runs · sft · L40S 48 GB`."""
    runs = comparison.runs
    shared = [{run.job for run in runs}, {run.card for run in runs}, {run.precision for run in runs}]
    words = [next(iter(values)) for values in shared if len(values) == 1]
    count = f"{len(runs)} runs" if drawn == len(runs) else f"{drawn} of {len(runs)} runs"
    return printable(" · ".join(filter(None, (count, *words))))
