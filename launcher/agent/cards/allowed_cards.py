"""Check that a service or scheduler gave a run the cards that its plan was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

from ..record.strict_json import JsonObject
from . import nvidia

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord

WRONG_CARD = "wrong-card"
MAX_CHARS = 400


class AllowedCards(NamedTuple):
    """Acceptable cards: a number of one of these names, with memory in a range if one is set.

    `plan` has the values of the plan that differ with these cards.
    """

    names: Tuple[str, ...]
    memory_mib: Optional[Tuple[float, float]]
    number: int
    title: str
    plan: PlanRecord


def read_cards(record: JsonObject) -> AllowedCards:
    """Return the cards of a record.

    Raises ValueError, KeyError, TypeError or AttributeError for a record of another shape.
    """
    memory = record.get("memory_mib")
    return AllowedCards(
        names=tuple(str(name) for name in record["names"]),
        memory_mib=None if memory is None else (float(memory[0]), float(memory[1])),
        number=int(record["count"]),
        title=str(record["title"]),
        plan=cast("PlanRecord", dict(record.get("plan") or {})),
    )


class UnfitError(Exception):
    """Raised for a machine that the run cannot train on: the reason of its end, and the evidence."""

    def __init__(self, reason: str, line: str, why: str, mend: str) -> None:
        """Keep the reason of the end, the observation, its explanation and the advice."""
        super().__init__(line)
        self.reason = reason
        self.evidence = {"class": reason, "line": line[:MAX_CHARS], "why": why, "mend": mend}


class AssignedCards(NamedTuple):
    """The cards that a run got: their entry in the allowed cards, and the UUIDs and the capability of those in use."""

    allowed: AllowedCards
    gpus: List[str]
    capability: Optional[str]


def choose_cards(
    root: str, allowed: Sequence[AllowedCards], place: str, mend: str, mend_without_card: str = ""
) -> Optional[AssignedCards]:
    """Return the first of the allowed cards that this machine has; None for a run without a card.

    Raises UnfitError for other cards. The error lists the cards of the `place`, and proposes `mend` to the
    user, or `mend_without_card` if the place has none.
    """
    if not allowed:
        return None
    report = nvidia.read_cards(root)
    for one in allowed:
        found = [gpu for gpu in report["gpus"] if _is_one_of(gpu, one)]
        if len(found) >= one.number > 0:
            used = found[: one.number]
            return AssignedCards(one, [gpu["uuid"] for gpu in used], used[0]["capability"])
    has_any = bool(report["gpus"])
    planned = " or ".join(one.title for one in allowed)
    raise UnfitError(
        WRONG_CARD,
        "%s has %s" % (place, _words(report)),
        "%s came; the plan was made for %s" % ("other cards" if has_any else "no card", planned),
        mend if has_any or not mend_without_card else mend_without_card,
    )


def _is_one_of(gpu: nvidia.CardReport, allowed: AllowedCards) -> bool:
    if gpu["name"].casefold() not in {name.casefold() for name in allowed.names}:
        return False
    if allowed.memory_mib is None:
        return True
    low, high = allowed.memory_mib
    return gpu["memory_mib"] is not None and low <= gpu["memory_mib"] <= high


def _words(report: nvidia.CardsReport) -> str:
    """Return the cards of a report in words, e.g. `1 x Tesla P100-PCIE-16GB (16280 MiB)`."""
    kinds: Dict[str, int] = {}
    for gpu in report["gpus"]:
        memory = "" if gpu["memory_mib"] is None else " (%d MiB)" % gpu["memory_mib"]
        kinds[gpu["name"] + memory] = kinds.get(gpu["name"] + memory, 0) + 1
    words = ", ".join("%d x %s" % (count, name) for name, count in kinds.items()) or "no card"
    return "%s: %s" % (words, report["gpu_error"]) if report["gpu_error"] else words
