"""The resources that a run needs before it can start: its nodes, and how it gets its cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.planning.host_resources import MACHINE, Resources
from launcher.values.plan import Allocation, Node, RankUse, Split
from launcher.values.profile import Profile


def processes(profile: Profile, use: RankUse | None, count: int = 1) -> int:
    """Return the number of processes on `count` nodes: one per card, or per node if the script is one process."""
    return count if use is not None and use.kind == "none" else profile.count * count


def nodes(split: Split, count: int = 1) -> tuple[Node, ...]:
    """Return the nodes of a run, which have equal shares of the ranks."""
    return (Node(ranks=split.ranks // count),) * count


def allocation(profile: Profile, *, is_rehearsed: bool, resources: Resources = MACHINE) -> Allocation:
    """Return how a run gets its cards. A CPU (also in a rehearsal) or an Apple GPU is `given`, unless a scheduler assigns nodes."""
    has_cards = profile.kind == "cuda" and not is_rehearsed
    how = resources.cards if has_cards or resources.cards == "scheduled" else "given"
    cards = profile.count * resources.nodes if has_cards else 0
    return Allocation(how=how, cards=cards, kind=profile.name)


def complete(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded plan with nodes and allocation, which plans lacked before 2026-11-22.

    A value that is not a plan is returned unchanged: its reader rejects it.
    """
    values = dict(record)
    if "nodes" in values or "allocation" in values or not {"split", "profile"} <= values.keys():
        return values
    split, profile = Split.model_validate(values["split"]), Profile.model_validate(values["profile"])
    is_rehearsed = values.get("rehearsed") is True
    values["nodes"] = [node.model_dump() for node in nodes(split)]
    values["allocation"] = allocation(profile, is_rehearsed=is_rehearsed).model_dump()
    return values
