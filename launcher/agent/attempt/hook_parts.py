"""The parts of the worker's start-up hook that a plan turns on."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, PlanRecord


def hook_parts(plan: PlanRecord, attempt: AttemptRecord) -> List[str]:
    """Return the names of the parts, for the variable LAUNCH_HOOK. `attempt` is the attempt's record."""
    parts = {
        "rehearse": imitates_card(plan),
        "adapt": plan.get("adapt") is True,
        "resume": attempt.get("own_checkpoint") is not None,
        "observe": plan.get("inject") is True,
    }
    return [name for name, is_on in parts.items() if is_on]


def imitates_card(plan: PlanRecord) -> bool:
    """Whether torch imitates the plan's card: true in a rehearsal of a script that ignores the plan."""
    is_adapted = plan.get("adapt") is True
    is_hooked = is_adapted or (plan.get("inject") is True and plan.get("takes") == [])
    return is_hooked and plan.get("rehearsed") is True and plan["profile"]["kind"] == "cuda"
