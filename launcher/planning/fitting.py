"""What fits on a card: the rung that a training gets there; and what would fit where a plan does not.

A model is never split among cards: each card of a run holds all of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from launcher.errors import RefusedError
from launcher.planning.ladder import LadderInputs, ladder, too_large
from launcher.planning.memory import Estimate
from launcher.planning.workload import workload_of
from launcher.values.method import Method
from launcher.values.plan import Plan
from launcher.values.precision import Precision
from launcher.values.profile import Profile

METHODS: dict[Method, str] = {
    "full": "train all weights",
    "lora": "train an adapter",
    "qlora": "train an adapter over a base in 4 bits",
}
"""The one that takes most memory first, and its words."""
SHORTEST = 64
"""Examples shorter than this many tokens are not proposed."""


class Fit(NamedTuple):
    """A precision that fits, whether with activation checkpointing, and the memory of a step with a micro-batch of 1."""

    rung: Precision
    is_checkpointed: bool
    estimate: Estimate


def fit(inputs: LadderInputs, *, takes_checkpointing: bool = True) -> Fit | None:
    """Return the first rung that fits, with activation checkpointing if nothing fits without it; None if nothing does.

    bf16 weights come after float32 weights with checkpointing. `inputs` has a model.
    """
    ways = sorted({inputs.workload.is_checkpointed, takes_checkpointing or inputs.workload.is_checkpointed})
    for takes_bf16_weights, is_checkpointed in itertools.product((False, True), ways):
        workload = inputs.workload._replace(is_checkpointed=is_checkpointed)
        case = inputs._replace(workload=workload, takes_bf16_weights=takes_bf16_weights)
        rung = ladder(case).rungs[0]
        needed = case.estimate(rung)
        if needed is not None and not too_large(case, rung):
            return Fit(rung, is_checkpointed, needed)
    return None


def inputs_of(plan: Plan) -> LadderInputs:
    """Return what the ladder of a plan depends on, but for what was seen on its host."""
    first = plan.ladder[0]
    return LadderInputs(
        plan.profile,
        plan.method,
        plan.model_facts,
        attention=first.attention,
        compile=first.compile,
        workload=workload_of(plan),
    )


def what_fits(plan: Plan, cards: Iterable[Profile]) -> Iterator[str]:
    """Yield what to ask for in place of a plan that does not fit: checkpointing, a method, shorter examples, one of `cards`."""
    inputs = inputs_of(plan)
    takes_checkpointing = plan.hands_out("checkpointing")

    def fits(case: LadderInputs) -> bool:
        return fit(case, takes_checkpointing=takes_checkpointing) is not None

    if takes_checkpointing and not plan.checkpointing and fits(inputs):
        yield "compute activations again   --set checkpointing=true"
    if "optim" in plan.settings and inputs.workload.optimizer != "adamw-planned":
        planned = inputs._replace(workload=inputs.workload._replace(optimizer="adamw-planned"))
        if plan.method == "full" and fits(planned):
            yield "the plan's optimizer, which can keep weights in bf16   --set settings.optim=auto"
    leaner = [*METHODS][[*METHODS].index(plan.method) + 1 :]
    if method := next((one for one in leaner if fits(inputs._replace(method=one))), None):
        yield f"{METHODS[method]}   --set method={method}"
    tokens = inputs.workload.tokens
    if "max_length" in plan.settings and plan.hands_out("split"):
        lengths = (tokens >> halvings for halvings in range(1, tokens.bit_length()))
        shorter = (inputs._replace(workload=inputs.workload._replace(tokens=one)) for one in lengths)
        enough = next((one.workload.tokens for one in shorter if fits(one)), 0)
        if enough >= SHORTEST:
            yield f"shorter examples   --set settings.max_length={enough}"
    larger = [card for card in cards if card.kind == "cuda" and _fits_on(card, inputs, fits)]
    if larger:
        least = min(larger, key=lambda card: (card.memory_bytes or 0, card.count, card.name))
        yield f"a larger card   --profile {least.name}     {least.title}"


def _fits_on(card: Profile, inputs: LadderInputs, fits: Callable[[LadderInputs], bool]) -> bool:
    """Whether a plan fits on another card; not if that cannot run the job's `attention` or `compile`."""
    try:
        return fits(inputs._replace(profile=card))
    except RefusedError:
        return False
