"""The gate's findings on model size without a card's memory: a model of unknown shape, and a host's CPU."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.planning.alternatives import what_fits
from launcher.planning.precision.ladder import MEASURED
from launcher.planning.precision.memory import GB, Training, estimate
from launcher.planning.precision.workload import workload_of
from launcher.values.facts import Facts
from launcher.values.plan import Finding, Plan
from launcher.values.profile import Profile


def unknown_model(plan: Plan) -> list[Finding]:
    """Note a model of the hub whose shape is unknown, so its memory is not estimated."""
    model = plan.model
    if model is None or model.kind != "name" or model.value.count("/") != 1 or plan.model_facts is not None:
        return []
    if plan.ladder[0].why.startswith(MEASURED):
        return []
    message = (
        f"{model.value}: its config.json is neither here nor on {plan.host}, so the memory is not estimated"
    )
    if plan.hands_out("split") and plan.profile.kind == "cuda":
        message += f", and the micro-batch of {plan.split.micro_batch} is a guess from the card alone"
    mend = f"hf download {model.value} config.json     here: a launch reads it from the hub's cache"
    return [Finding(level="note", code="model-unknown", message=message, mend=mend)]


def model_on_cpu(plan: Plan, facts: Facts, cards: Iterable[Profile]) -> list[Finding]:
    """Note a CPU training that needs more than the host's memory. It is not refused, because swap may help."""
    model, memory_gb = plan.model_facts, facts.memory_gb
    if plan.profile.kind != "cpu" or model is None or memory_gb is None:
        return []
    needed = estimate(Training(model, plan.method, workload_of(plan)), plan.ladder[0])
    if needed.total / GB <= memory_gb:
        return []
    parts = ", ".join(f"{name} {part / GB:.1f}" for name, part in needed._asdict().items())
    message = (
        f"the model's {model.billions:.1f} B parameters need about {needed.total / GB:.1f} GB on the CPU"
        f" with a micro-batch of 1 ({parts}); {plan.host} has {memory_gb:g} GB of memory"
    )
    limited = plan.profile.model_copy(update={"memory_gb": memory_gb})
    fitting = what_fits(plan.model_copy(update={"profile": limited}), cards)
    return [Finding(level="note", code="model-too-large", message=message, mend="\n  ".join(fitting))]
