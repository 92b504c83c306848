"""Choose a host's cards for a launch, and wait until they can be leased."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from launcher.backends.registry import backend_of
from launcher.base.text import printable
from launcher.errors import AgentError, CardBusyError
from launcher.planning.placement import (
    cards_of,
    choose_gpus,
    describe_holders,
    is_unavailable,
    requested_gpus,
    strangers_on,
)
from launcher.runs.follow.view import View
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan
from launcher.values.reported.answers import BusyCard

POLL_S = 2.0
LEASED = "card-leased"
BUSY = "gpu-busy-exclusive"
REFUSED = "refused before anything was sent: "
WAIT = "wait for it   --wait 30m     with the same command"
T = TypeVar("T")


class CardChoice(NamedTuple):
    """The cards that can be used now (UUIDs), the number needed, and their titles.

    `any_of` includes cards that are in use now: a run may move to them later.
    """

    gpus: tuple[str, ...]
    any_of: tuple[str, ...]
    needed: int
    titles: dict[str, str]

    def title(self, gpus: tuple[str, ...]) -> str:
        """Return the titles of cards for users."""
        return ", ".join(self.titles.get(gpu, gpu) for gpu in gpus)


def card_choice(asked: str | None, plan: Plan, facts: Facts) -> CardChoice:
    """Return the cards that a plan may use: those of its profile, limited to `--gpus` if given.

    Empty for cards that launcher does not lease: those given to the run, or assigned by a scheduler.
    """
    _, named = requested_gpus(asked, plan.profile.count)
    is_leased = plan.allocation.how not in ("given", "scheduled")
    by_profile = choose_gpus(plan.profile, facts, len(facts.gpus)) if is_leased else ()
    any_of = tuple(gpu for gpu in by_profile if not named or gpu in named)
    taken = {gpu.uuid for gpu in facts.gpus if is_unavailable(gpu, facts)}
    gpus = tuple(gpu for gpu in any_of if gpu not in taken)
    titles = {gpu.uuid: f"GPU {gpu.index}" for gpu in facts.gpus}
    return CardChoice(gpus, any_of, plan.allocation.cards if gpus else 0, titles)


def findings(asked: str | None, plan: Plan, host: Host, facts: Facts | None) -> Sequence[Finding]:
    """Return the findings against the cards of `--gpus`. Only the gate reports that cards are too few."""
    if asked is None:
        return []
    _, named = requested_gpus(asked, plan.profile.count)
    if plan.profile.kind != "cuda":
        message = f"--gpus {asked}: {plan.profile.title} has no cards to choose from"
        return [
            Finding(level="refuse", code="no-such-card", message=message, mend="launch it without --gpus")
        ]
    if own := backend_of(host).planning.gpus_refusals(asked, plan):
        return own
    if facts is None or not named:
        return []
    there = {gpu.uuid: gpu for gpu in (() if plan.rehearsed else cards_of(plan.profile, facts))}
    found = []
    if missing := [gpu for gpu in named if gpu not in there]:
        message = f"--gpus {asked}: {plan.host} has no {plan.profile.of_cards(1).title} {', '.join(missing)}"
        mend = f"its cards   launch probe --host {plan.host}"
        found.append(Finding(level="refuse", code="no-such-card", message=message, mend=mend))
    if taken := [there[gpu] for gpu in named if gpu in there and is_unavailable(there[gpu], facts)]:
        lines = [
            f"--gpus {asked}: {plan.host}: these cards are held",
            *(describe_holders(gpu, facts) for gpu in taken),
        ]
        mend = f"who holds it   launch probe --host {plan.host}"
        is_held = any(strangers_on(gpu) for gpu in taken)
        code = BUSY if is_held else "gpu-prohibited"
        found.append(Finding(level="refuse", code=code, message="\n  ".join(lines), mend=mend))
    return found


def refusal(findings: Sequence[Finding], plan: Plan, facts: Facts) -> CardBusyError | None:
    """Return the busy error for a plan if its only obstacle is that its cards are held; else None."""
    if not findings or any(one.code != BUSY for one in findings):
        return None
    taken = [gpu for gpu in cards_of(plan.profile, facts) if is_unavailable(gpu, facts)]
    holders = [f"{one.title} holds GPU {gpu.index}" for gpu in taken for one in strangers_on(gpu)]
    text = f"{REFUSED}{findings[0].message}\n  {WAIT}\n  {findings[0].mend}"
    return CardBusyError(text, ", ".join(holders) or "its cards accept no processes")


def waiting_for(make: Callable[[], T], wait_s: float, view: View) -> T:
    """Call `make`; while its cards are held, retry for `wait_s` seconds and show the holders.

    Raises CardBusyError if they are still held at the end.
    """
    try:
        return make()
    except CardBusyError as error:
        if wait_s <= 0:
            raise
        first = error.holders
    deadline = time.monotonic() + wait_s
    with view.stage("wait") as stage:
        stage.progress(first)
        while True:
            time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))
            try:
                made = make()
            except CardBusyError as error:
                if time.monotonic() >= deadline:
                    raise
                stage.progress(error.holders)
            else:
                stage.text = f"no longer {first}"
                return made


def leased(error: AgentError, plan: Plan, cards: CardChoice) -> CardBusyError:
    """Return the error for cards that other runs have leased."""
    listed = error.values.get("busy")
    busy = (
        [BusyCard.lenient(card) for card in listed if isinstance(card, dict)]
        if isinstance(listed, list)
        else []
    )
    holders = printable(", ".join(_holder(card, cards) for card in busy))
    lines = [f"gpu busy: {holders}", f"  {WAIT}"]
    if run := next((card.run for card in busy if card.run), ""):
        short = printable(run).rpartition("-")[2]
        lines.append(f"  or end it     launch stop --host {plan.host} {short}")
    return CardBusyError("\n".join(lines), holders)


def _holder(card: BusyCard, cards: CardChoice) -> str:
    title = cards.titles.get(card.gpu, card.gpu)
    if card.state == "queued":
        return f"{title} is reserved for an earlier launch, which waits"
    by = f"run {card.run} ({card.state})" if card.run else "a run that is just ending"
    return f"leased by {by} on {title}"
