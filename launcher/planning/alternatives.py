"""Alternatives to a plan that does not fit: changes to the request. Each is planned as if the user had typed it.

A model is never split among cards: each card of a run holds all of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from launcher.planning.assembly import ladder_inputs
from launcher.planning.precision.ladder import has_fitting, is_too_large_as_asked
from launcher.planning.precision.memory import GB, Training, estimate, teacher_bytes, usable_gb
from launcher.planning.precision.quantizer import why_untrainable
from launcher.planning.precision.workload import CHECKPOINTING_NAMES, LORA_RANK_NAMES, workload_of
from launcher.values.job import Job, Method, Scalar, trains_adapter
from launcher.values.plan import Plan, ScriptUse
from launcher.values.precision import Platform, PrecisionRequest
from launcher.values.profile import Profile

METHODS: dict[Method, str] = {
    "full": "all weights",
    "lora": "an adapter",
    "qlora": "an adapter over a base in 4 bits",
}
"""The methods and their words; the one that takes the most memory comes first."""
SHORTEST = 64
"""The shortest examples that are proposed, in tokens."""
SMALLEST_RANK = 4
"""The smallest adapter rank that is proposed."""
MOST = 4
"""The largest number of proposals."""


class Change(NamedTuple):
    """A change to the request: its words, the option to type, and the changed keys, settings, card or precision.

    `keys` are keys of the job. Of each `kind`, at most one change is proposed without a second change.
    """

    kind: str
    words: str
    option: str
    keys: Mapping[str, object] = {}
    settings: Mapping[str, Scalar] = {}
    card: Profile | None = None
    precision: PrecisionRequest | None = None


def what_fits(plan: Plan, cards: Iterable[Profile]) -> Iterator[str]:
    """Yield alternatives to a plan that does not fit, `MOST` at most.

    First come single changes that make the plan fit. Then come pairs of changes, neither of which is enough alone;
    a card in a pair is smaller than the card that would be enough alone.
    """
    proposals = itertools.chain(_smaller_teacher(plan), _changes_that_fit(plan, cards))
    yield from itertools.islice(proposals, MOST)


def _smaller_teacher(plan: Plan) -> Iterator[str]:
    """Propose another teacher if the teacher takes the most memory and the rest fits."""
    if plan.model_facts is None:
        return
    training, first = Training(plan.model_facts, plan.method, workload_of(plan)), plan.ladder[0]
    parts, taught = estimate(training, first), teacher_bytes(training, first)
    others = parts._replace(weights=parts.weights - taught)
    if taught > max(others) and others.total / GB < (usable_gb(plan.profile) or 0):
        yield "a smaller teacher"


def _changes_that_fit(plan: Plan, cards: Iterable[Profile]) -> Iterator[str]:
    groups = [[*_of_job(plan, kind)] for kind in _KINDS]
    groups = [group for group in (*groups, _cards(plan, cards)) if group]
    alone: dict[str, Change] = {}
    for group in groups:
        kind = group[0].kind
        found = next((one for one in group if kind not in alone and _fits(plan, one)), None)
        if found is not None:
            alone[kind] = found
            yield _words(found)
    for one, other in itertools.combinations(groups, 2):
        kinds = [group[0].kind for group in (one, other)]
        is_open = not any(kind in alone for kind in kinds if kind != "card") and kinds[0] != kinds[1]
        if is_open and 1 in (len(one), len(other)):  # else the number of pairs is too large
            pairs: Iterable[tuple[Change, Change]] = itertools.product(one, other)
            if "card" in kinds and "card" in alone:
                pairs = itertools.takewhile(lambda pair: pair[1] != alone["card"], pairs)
            found_pair = next((pair for pair in pairs if _fits(plan, *pair)), None)
            if found_pair is not None:
                yield _words(*found_pair)


def _words(*changes: Change) -> str:
    words = ", and ".join(change.words for change in changes)
    card = next((f"     {change.card.title}" for change in changes if change.card), "")
    return f"{words}   {' '.join(change.option for change in changes)}{card}"


def _fits(plan: Plan, *changes: Change) -> bool:
    """Whether a rung fits when a plan is requested again with changes. A refused request does not fit."""
    first = plan.ladder[0]
    asked: PrecisionRequest = first.mode if is_too_large_as_asked(plan.ladder) else "auto"
    job = Job(
        name=plan.job,
        command=plan.command,
        teacher=plan.teacher.value if plan.teacher else None,
        method=plan.method,
        attention=first.attention,
        compile=first.compile,
        checkpointing=plan.checkpointing,  # already on, as nothing fits; off if impossible or set to false
        sharding=plan.sharding,  # likewise
        settings=dict(plan.settings),
    )
    card = plan.profile
    for change in changes:
        job = job.model_copy(update={**change.keys, "settings": {**job.settings, **change.settings}})
        card, asked = change.card or card, change.precision or asked
    inputs = ladder_inputs(
        card,
        job,
        plan.model_facts,
        first.platform or Platform(),
        teacher=plan.teacher_facts,
        asked=asked,
        script=ScriptUse(plan.takes, plan.rank_use),
        count=len(plan.nodes),
    )
    return has_fitting(inputs, asked)


_KINDS = ("checkpointing", "precision", "optimizer", "optimizer's state", "lora", "qlora", "rank", "length")
"""The order of changes to a job; a card comes last."""


def _of_job(plan: Plan, kind: str) -> Iterator[Change]:
    """Yield the changes of a kind that the plan's job allows, the smallest first."""
    settings = plan.settings
    if kind == "checkpointing" and not plan.checkpointing:
        yield from _checkpointing(plan)
    elif kind == "precision" and is_too_large_as_asked(plan.ladder):
        yield Change(kind, "another precision", "--precision auto", precision="auto")
    elif kind in ("lora", "qlora") and kind in [*METHODS][[*METHODS].index(plan.method) + 1 :]:
        method: Method = "lora" if kind == "lora" else "qlora"
        if why_untrainable(plan.model_facts, method):
            return
        # If the script decides its method itself, the plan's method is only an assumption.
        is_own = plan.adapt or not plan.takes_base
        words = f"{METHODS[method]}, if the script trains one" if is_own else f"train {METHODS[method]}"
        yield Change("method", words, f"--set method={method}", {"method": method})
    elif kind.startswith("optimizer") and plan.method == "full" and "optim" in settings:
        yield from _optimizers(plan, kind)
    elif kind == "rank" and trains_adapter(plan.method):
        name = next((name for name in LORA_RANK_NAMES if name in settings), "")
        for rank in _halvings(settings.get(name), SMALLEST_RANK):
            yield Change(kind, "a narrower adapter", f"--set settings.{name}={rank}", settings={name: rank})
    elif kind == "length" and plan.hands_out("split"):
        for length in _halvings(settings.get("max_length"), SHORTEST):
            option = f"--set settings.max_length={length}"
            yield Change(kind, "shorter examples", option, settings={"max_length": length})


def _checkpointing(plan: Plan) -> Iterator[Change]:
    """Yield activation checkpointing, by the job's key if the script takes it from the plan, else by a setting that is now false."""
    words = "recompute activations"
    if plan.hands_out("checkpointing"):
        yield Change("checkpointing", words, "--set checkpointing=true", {"checkpointing": True})
    elif name := next((name for name in CHECKPOINTING_NAMES if plan.settings.get(name) is False), ""):
        yield Change("checkpointing", words, f"--set settings.{name}=true", settings={name: True})


def _optimizers(plan: Plan, kind: str) -> Iterator[Change]:
    """Yield the plan's optimizer, or, if the job has no teacher, optimizers of transformers' Trainer that need less memory."""
    if kind == "optimizer" and plan.settings["optim"] != "auto":
        words = "the plan's optimizer, which can keep weights in bf16"
        yield Change("optimizer", words, "--set settings.optim=auto", settings={"optim": "auto"})
    elif kind != "optimizer" and plan.teacher is None:
        has_8bit = any("bitsandbytes" in text for text in plan.requirements)
        for name in ("adamw_bnb_8bit", "adafactor") if has_8bit else ("adafactor",):
            words = "an optimizer of Trainer that needs less memory"
            yield Change("optimizer", words, f"--set settings.optim={name}", settings={"optim": name})


def _halvings(value: Scalar | None, least: int) -> Iterator[int]:
    """Yield half of a number, a quarter and so on, down to `least`."""
    if type(value) is int:
        yield from itertools.takewhile(
            lambda half: half >= max(least, 1), (value >> number for number in itertools.count(1))
        )


def _cards(plan: Plan, cards: Iterable[Profile]) -> list[Change]:
    """Return the other cards by memory; those with bf16 come first if the plan needs it."""
    needs_bf16 = plan.ladder[0].mode in ("bf16", "bf16-weights")
    known = sorted(
        (card for card in cards if card.kind == "cuda"),
        key=lambda card: (needs_bf16 > card.has_bf16, card.memory_bytes or 0, card.count, card.name),
    )
    own = plan.profile.memory_bytes or 0
    return [
        Change(
            "card",
            f"{'a larger' if (card.memory_bytes or 0) > own else 'another'} card, on a host that has one",
            f"--profile {card.name}",
            card=card,
        )
        for card in known
    ]
