"""Which of a host's cards a launch asks for, and how it comes by them: leased on the host, or waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from launcher.errors import AgentError, RefusedError
from launcher.hosts.agent import printable
from launcher.planning import choose_gpus, gpus_meant, is_taken
from launcher.runs.view import View
from launcher.spec.facts import Facts
from launcher.spec.plan import Finding, Plan

POLL_S = 2.0
LEASED = "card-leased"
T = TypeVar("T")


class Wanted(NamedTuple):
    """The cards that will do (UUIDs), how many of them are needed, and what they are called."""

    gpus: tuple[str, ...]
    needed: int
    titles: dict[str, str]

    def title(self, gpus: tuple[str, ...]) -> str:
        """Return cards as a person reads them."""
        return ", ".join(self.titles.get(gpu, gpu) for gpu in gpus)


def wanted(asked: str | None, plan: Plan, facts: Facts) -> Wanted:
    """Return the cards that a plan may have: those of its profile, or those of them that `--gpus` names."""
    _, named = gpus_meant(asked, plan.split.ranks)
    there = _there(plan, facts)
    gpus = tuple(gpu for gpu in there if gpu in named) if named else there
    return Wanted(gpus, plan.split.ranks if gpus else 0, {gpu.uuid: f"GPU {gpu.index}" for gpu in facts.gpus})


def _there(plan: Plan, facts: Facts) -> tuple[str, ...]:
    """Return the cards of a plan's profile that admit a process of ours, the free ones first."""
    taken = {gpu.uuid for gpu in facts.gpus if is_taken(gpu, facts)}
    return tuple(gpu for gpu in _named_by_profile(plan, facts) if gpu not in taken)


def _named_by_profile(plan: Plan, facts: Facts) -> tuple[str, ...]:
    return () if plan.rehearsed else choose_gpus(plan.profile, facts, len(facts.gpus))


def findings(asked: str | None, plan: Plan, facts: Facts | None) -> list[Finding]:
    """Return what speaks against the cards that `--gpus` asks for."""
    if asked is None:
        return []
    ranks = plan.split.ranks
    count, named = gpus_meant(asked, ranks)
    found = []
    if count != ranks:
        message = (
            f"--gpus {asked}: {plan.profile.title} is planned for {ranks} card{'s' if ranks > 1 else ''}"
        )
        mend = f"a profile says how many   count = {count}, as `launch profile show t4x2` has it"
        found.append(Finding(level="refuse", code="not-yet", message=message, mend=mend))
    if facts is not None:
        there = _named_by_profile(plan, facts)
        missing = [gpu for gpu in named if gpu not in there]
        taken = [gpu for gpu in named if gpu in there and gpu not in _there(plan, facts)]
        if missing or not there:
            message = f"--gpus {asked}: {plan.host} has no {plan.profile.title} {', '.join(missing)}".rstrip()
            mend = f"which there are   launch probe --host {plan.host}"
            found.append(Finding(level="refuse", code="no-such-card", message=message, mend=mend))
        if taken:
            message = f"--gpus {asked}: {plan.host}: {', '.join(taken)} admits no process of ours"
            mend = f"who holds it   launch probe --host {plan.host}"
            found.append(Finding(level="refuse", code="gpu-busy-exclusive", message=message, mend=mend))
    return found


def waiting_for(make: Callable[[], T], plan: Plan, cards: Wanted, wait_s: float, view: View) -> T:
    """Make a run; while other runs have the cards try again, for so many seconds, and show who has them.

    Raises RefusedError when they have them still.
    """
    try:
        return make()
    except AgentError as error:
        if error.code != LEASED:
            raise
        if not wait_s:
            raise _refused(error, plan, cards) from error
        first = error
    deadline = time.monotonic() + wait_s
    with view.stage("wait") as stage:
        stage.progress(_holders(first, cards))
        while True:
            time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))
            try:
                made = make()
            except AgentError as error:
                if error.code != LEASED:
                    raise
                if time.monotonic() >= deadline:
                    raise _refused(error, plan, cards) from error
                stage.progress(_holders(error, cards))
            else:
                stage.text = f"no longer {_holders(first, cards)}"
                return made


def _busy(error: AgentError) -> list[dict[str, Any]]:
    told = error.values.get("busy")
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _holders(error: AgentError, cards: Wanted) -> str:
    """Return who has the cards, in words."""
    words = []
    for one in _busy(error):
        gpu = str(one.get("gpu"))
        by = f"run {one['run']} ({one.get('state')})" if one.get("run") else "a run that just leaves"
        words.append(f"leased by {by} on {cards.titles.get(gpu, gpu)}")
    return printable(", ".join(words))


def _refused(error: AgentError, plan: Plan, cards: Wanted) -> RefusedError:
    run = next((str(one["run"]) for one in _busy(error) if one.get("run")), "")
    lines = [f"gpu busy: {_holders(error, cards)}", f"  wait for it   launch --host {plan.host} --wait 30m …"]
    if run:
        short = printable(run).rpartition("-")[2]
        lines.append(f"  or end it     launch stop --host {plan.host} {short}")
    return RefusedError("\n".join(lines))
