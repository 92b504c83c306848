"""A plan as text: the headline of a launch, and the complete plan of a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from launcher.backends.registry import backend_of
from launcher.base.text import printable
from launcher.cli.output.say import say
from launcher.runs.launch.hook_note import hook_note
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan, PlanValue

CHECKPOINTING = "activation checkpointing: the backward pass computes activations again, which takes about a third more time per step"
_WORDS: dict[PlanValue, str] = {"precision": "precision", "split": "batch"}


def headline(plan: Plan) -> str:
    """Return one line with the job, the host, the card and the precision."""
    nodes = len(plan.nodes)
    words = [f"{plan.job} on {plan.host}", plan.card_title]
    if nodes > 1:
        words = [f"{plan.job} on {nodes} nodes of {plan.host}", f"{plan.card_title} on each"]
    if plan.hands_out("precision"):
        words.append(plan.ladder[0].title)
    own = [word for value, word in _WORDS.items() if not plan.hands_out(value)]
    if own:
        words.append(f"your script decides its own {' and '.join(own)}")
    return " · ".join(words)


def show_plan(plan: Plan, host: Host, findings: tuple[Finding, ...]) -> None:
    """Print a plan as text."""
    planning = backend_of(host).planning
    rungs = plan.ladder if plan.hands_out("precision") else ()
    batch = [plan.split.title] if plan.hands_out("split") else []
    from launcher.cli.output.wrapping import say_wrapped

    say_wrapped(
        headline(plan),
        *(f"  rung {number}     {rung.title}   ({rung.why})" for number, rung in enumerate(rungs, start=1)),
        *(f"  batch      {title}" for title in batch),
        *([f"  memory     {CHECKPOINTING}"] if _is_checkpointed(plan) else []),
        *([f"  memory     {sharding_words(plan.split.ranks)}"] if plan.sharding else []),
        f"  command    {' '.join(plan.command)}",
        f"  env        {planning.environment(plan)}",
        *([f"  variables  {_variables(plan)}"] if plan.variables else []),
        *(f"  {label:<10} {words}" for label, words in planning.rows(plan)),
        *([f"  on end     {' '.join(plan.on_end)}"] if plan.on_end else []),
        *(f"  hook       {note.partition(': ')[2]}" for note in [hook_note(plan)] if note),
        f"  plan       sha256 {plan.digest[:16]}   ({len(findings)} finding{'s' * (len(findings) != 1)}; complete plan: --json)",
        hang=13,
    )


def sharding_words(ranks: int) -> str:
    """Return a sentence about a model that is divided among cards."""
    return f"the model is divided among {ranks} cards (FSDP2), which exchange its weights in each micro-batch"


def _is_checkpointed(plan: Plan) -> bool:
    return plan.checkpointing and plan.hands_out("checkpointing")


def show_findings(findings: Iterable[Finding]) -> None:
    """Print the findings: reasons for a refusal, and notes."""
    from launcher.cli.output.wrapping import say_wrapped

    for finding in findings:
        mark = "would refuse" if finding.level == "refuse" else "note"
        mend = f"  {finding.mend}".split("\n") if finding.mend else []
        say_wrapped(*f"{mark}: {finding.message}".split("\n"))
        if mend:
            say(*mend)


def _variables(plan: Plan) -> str:
    return printable(" ".join(f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()))
