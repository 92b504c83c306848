"""Which parts of the worker's start-up hook are on in a training, by its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord


def hook_parts(plan: PlanRecord) -> List[str]:
    """Return the names of the parts, as the variable LAUNCH_HOOK lists them."""
    parts = {
        "rehearse": imitates_card(plan),
        "adapt": plan.get("adapt") is True,
        "observe": plan.get("inject") is True,
    }
    return [name for name, is_on in parts.items() if is_on]


def imitates_card(plan: PlanRecord) -> bool:
    """Whether torch acts as with the plan's card: a rehearsal of a script that takes nothing from the plan by itself."""
    is_adapted = plan.get("adapt") is True
    is_hooked = is_adapted or (plan.get("inject") is True and plan.get("takes") == [])
    return is_hooked and plan.get("rehearsed") is True and plan["profile"]["kind"] == "cuda"
