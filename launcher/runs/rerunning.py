"""A run that is launched again, as a new one from step 0."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from launcher.base.json_file import flat
from launcher.copy.mirror import Mirror
from launcher.copy.request import Request, recall
from launcher.runs.follow.view import View
from launcher.runs.launch.dry_run import Preview, preview
from launcher.runs.launch.launching import Started, launch
from launcher.runs.launch.verifiable import refuse_verification
from launcher.values.plan import Finding, Plan

MOST_DIFFERENCES = 8
MOST_CELLS = 40
"""The width of a value that is shown whole."""


class Changes(NamedTuple):
    """What another run of the same shall have otherwise; None, or nothing, where it stays."""

    host: str | None = None
    profile: str | None = None
    settings: tuple[str, ...] = ()
    name: str | None = None
    env_files: tuple[str, ...] = ()
    wait_s: float = 0.0
    is_sure: bool = False


def rerun(parent: Mirror, changes: Changes, view: View) -> Started:
    """Launch what a run was launched with, with some changes, and show in what its plan differs. Raises what `launch` raises."""
    request = _changed(parent, changes)
    started = launch(request, view)
    if found := differences(parent.whole_plan(), started.mirror.whole_plan()):
        view.note(f"differs from {parent.short}: {', '.join(found)}")
    return started


def preview_rerun(parent: Mirror, changes: Changes) -> Preview:
    """Return what that launch would be, with what its plan has otherwise as a note. Raises what `preview` raises."""
    found = preview(_changed(parent, changes))
    changed = differences(parent.whole_plan(), found.plan)
    if not changed:
        return found
    words = f"differs from {parent.short}: {', '.join(changed)}"
    note = Finding(level="note", code="differs", message=words)
    return found._replace(findings=(*found.findings, note))


def _changed(parent: Mirror, changes: Changes) -> Request:
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
    """Return which values of a plan are not those of the one before: `steps 10 → 20`. The code is not compared."""
    old, new = (dict(flat(plan.model_dump(mode="json"))) for plan in (before, now))
    changed = [
        f"{key} {_shown(old.get(key))} → {_shown(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    left = len(changed) - MOST_DIFFERENCES
    return [*changed[:MOST_DIFFERENCES], *([f"and {left} more"] if left > 0 else [])]


def _shown(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_CELLS else f"{text[: MOST_CELLS - 1]}…"
