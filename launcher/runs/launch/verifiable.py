"""Decide which jobs can be verified; refuse to resume or rerun a verification."""

from __future__ import annotations

from launcher.copy.local_copy import LocalCopy
from launcher.errors import UsageError
from launcher.values.plan import Finding, Plan


def unverifiable(plan: Plan) -> tuple[Finding, ...]:
    """Return a refusal to verify a script that decides its own precision, because all trials would be the same."""
    if plan.hands_out("precision"):
        return ()
    message = "your script decides its own precision: no precision to verify"
    mend = "--adapt     applies the plan's precision without a change to the file"
    return (Finding(level="refuse", code="not-verifiable", message=message, mend=mend),)


def refuse_verification(plan: Plan, local_copy: LocalCopy) -> None:
    """Raise UsageError for a verification: it has no training to resume or run again."""
    if plan.verification is not None:
        card = "" if plan.profile.is_derived else f"--profile {plan.profile.name} "
        raise UsageError(
            f"{local_copy.run} is a verification: it trained nothing\n"
            f"  again    launch verify --host {plan.host} {card}--job {plan.job}\n"
            f"  or       launch rm --here {local_copy.short}"
        )
