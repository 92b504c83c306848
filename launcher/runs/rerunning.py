"""A run that is launched again, as a new one from step 0."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from launcher.runs.launching import Started, launch
from launcher.runs.mirror import Mirror
from launcher.runs.plan_differences import flat
from launcher.runs.request import recall
from launcher.runs.verifiable import refuse_verification
from launcher.runs.view import View
from launcher.values.plan import Plan

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
    request = recall(parent)
    before = parent.whole_plan()
    refuse_verification(before, parent)
    started = launch(
        request._replace(
            host=changes.host or request.host,
            profile=changes.profile or request.profile,
            settings=[*request.settings, *changes.settings],
            name=changes.name or request.name,
            env_files=[*request.env_files, *changes.env_files],
            wait_s=changes.wait_s,
            is_sure=changes.is_sure,
        ),
        view,
    )
    if found := differences(before, started.mirror.whole_plan()):
        view.note(f"differs from {parent.short}: {', '.join(found)}")
    return started


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
