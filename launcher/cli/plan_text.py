"""A plan as text: the headline of a launch, and the whole of a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from launcher.cli.say import say
from launcher.runs.hook_note import hook_note
from launcher.values.plan import Finding, Plan
from launcher.values.text import printable


def headline(plan: Plan) -> str:
    """Return in one line what runs where, and at which precision."""
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
        *([f"  variables  {_variables(plan)}"] if plan.variables else []),
        *(f"  hook       {note.partition(': ')[2]}" for note in [hook_note(plan)] if note),
        f"  plan       sha256 {plan.digest[:16]}   ({len(findings)} findings; complete plan: --json)",
    )


def show_findings(findings: Iterable[Finding]) -> None:
    """Print what a launch would refuse, and the notes."""
    for finding in findings:
        mark = "would refuse" if finding.level == "refuse" else "note"
        mend = f"  {finding.mend}".split("\n") if finding.mend else []
        say(*f"{mark}: {finding.message}".split("\n"), *mend)


def _variables(plan: Plan) -> str:
    return printable(" ".join(f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()))


def _environment(plan: Plan) -> str:
    environment = plan.environment
    if environment is None:
        return plan.host_environment or "the Python found on the host"
    return f"{environment.name}, made once on the host   (Python {environment.python}, torch {environment.torch})"
