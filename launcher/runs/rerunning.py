"""Launch a run again, as a new run from step 0."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request, recall
from launcher.planning.plan_differences import plan_differences
from launcher.runs.follow.view import View
from launcher.runs.launch.dry_run import Preview, preview
from launcher.runs.launch.launching import Started, launch
from launcher.runs.launch.verifiable import refuse_verification
from launcher.values.plan import Finding, Plan

MAX_DIFFERENCES = 8
MAX_CELLS = 40
"""The maximum width of a value that is shown whole."""


class Changes(NamedTuple):
    """The changes of a rerun; None, or an empty tuple, keeps the old value."""

    host: str | None = None
    profile: str | None = None
    settings: tuple[str, ...] = ()
    name: str | None = None
    env_files: tuple[str, ...] = ()
    wait_s: float = 0.0
    is_sure: bool = False


def rerun(parent: LocalCopy, changes: Changes, view: View) -> Started:
    """Launch a run's request again with some changes, and show the differences of the plans.

    Raises the errors of `launch`.
    """
    request = _changed(parent, changes)
    started = launch(request, view)
    if found := differences(parent.whole_plan(), started.local_copy.whole_plan()):
        view.note(f"differs from {parent.short}: {', '.join(found)}")
    return started


def preview_rerun(parent: LocalCopy, changes: Changes) -> Preview:
    """Return the preview of a rerun, with the differences of its plan as a note.

    Raises the errors of `preview`.
    """
    found = preview(_changed(parent, changes))
    changed = differences(parent.whole_plan(), found.plan)
    if not changed:
        return found
    words = f"differs from {parent.short}: {', '.join(changed)}"
    note = Finding(level="note", code="differs", message=words)
    return found._replace(findings=(*found.findings, note))


def _changed(parent: LocalCopy, changes: Changes) -> Request:
    """Return the request that a run came from, with some changes. Raises UsageError, BadFileError."""
    request = recall(parent)
    refuse_verification(parent.whole_plan(), parent)
    return request._replace(
        host=changes.host or request.host,
        profile=changes.profile or request.profile,
        settings=[*request.settings, *changes.settings],
        name=changes.name or request.name,
        env_files=[*request.env_files, *changes.env_files],
        wait_s=changes.wait_s,
        is_sure=changes.is_sure,
    )


def differences(before: Plan, now: Plan) -> list[str]:
    """Return the values that differ between two plans: `steps 10 → 20`. The code is not compared."""
    changed = [
        f"{one.key} {' → '.join(_shown(one.words))}"
        for one in plan_differences([plan.model_dump(mode="json") for plan in (before, now)])
    ]
    left = len(changed) - MAX_DIFFERENCES
    return [*changed[:MAX_DIFFERENCES], *([f"and {left} more"] if left > 0 else [])]


def _shown(values: Sequence[str]) -> list[str]:
    """Return values cut to fit. If they begin with the same long part, that is left out."""
    shared = sum(
        1 for _ in itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*values, strict=False))
    )
    left_out = shared - MAX_CELLS // 2
    pieces = [value if left_out <= 0 else f"…{value[left_out:]}" for value in values]
    return [piece if len(piece) <= MAX_CELLS else f"{piece[: MAX_CELLS - 1]}…" for piece in pieces]
