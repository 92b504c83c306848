"""A plan as text: the headline of a launch, and the whole of a dry run."""

from __future__ import annotations

from launcher.cli.say import say
from launcher.values.plan import Finding, Plan


def headline(plan: Plan) -> str:
    """Return what runs where and how, in one line."""
    card = f"{plan.profile.title}, rehearsed on a CPU" if plan.rehearsed else plan.profile.title
    return f"{plan.job} on {plan.host} · {card} · {plan.ladder[0].title}"


def show_plan(plan: Plan, findings: tuple[Finding, ...]) -> None:
    """Print a plan for people."""
    say(
        headline(plan),
        *(
            f"  rung {number}     {rung.title}   ({rung.why})"
            for number, rung in enumerate(plan.ladder, start=1)
        ),
        f"  batch      {plan.split.title}",
        f"  command    {' '.join(plan.command)}",
        f"  env        {_environment(plan)}",
        f"  plan       sha256 {plan.digest[:16]}   ({len(findings)} findings; the whole of it: --json)",
    )


def _environment(plan: Plan) -> str:
    if plan.environment is None:
        return plan.env or "the python that is found there"
    one = plan.environment
    return f"{one.name}, made there once   (Python {one.python}, torch {one.torch})"
