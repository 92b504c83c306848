"""Launch a run again, as a new run from step 0."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from launcher.base.json_file import flat
from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request, recall
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
    old, new = (dict(flat(plan.model_dump(mode="json"))) for plan in (before, now))
    changed = [
        f"{key} {_shown(old.get(key))} → {_shown(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    left = len(changed) - MAX_DIFFERENCES
    return [*changed[:MAX_DIFFERENCES], *([f"and {left} more"] if left > 0 else [])]


def _shown(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_CELLS else f"{text[: MAX_CELLS - 1]}…"
