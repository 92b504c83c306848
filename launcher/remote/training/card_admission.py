"""Cards that somebody holds, for an agent on the host itself: who it is, and how a run comes by cards that admit it.

Whether a card is leased says lease.py; this is about those who ask nobody. What is left of runs of ours is ended first.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from ..cards import lease, nvidia
from ..fate import run_state
from ..host import leftovers
from ..record.rundir import Run


class Look(NamedTuple):
    """Which of a run's possible cards admit it now, its own first, then the free ones; who holds the others, in words."""

    admitting: list[str]
    holders: str


def look(run: Run) -> Look | None:
    """Look who holds the cards that a run may have; None if the agent cannot see it, or the driver does not answer."""
    if not run_state.fate_of(run).sees_host:
        return None
    with contextlib.suppress(OSError):  # what it cannot put on record it leaves to the next launch
        leftovers.end_leftovers(run.root)
    told = nvidia.look(run.root)
    if told["gpu_error"] or told.get("holders_error") or not told["gpus"]:
        return None
    had = run.cards()
    possible = {*had, *(run_state.runtime_of(run).get("any_of") or ())}
    gpus = [gpu for gpu in told["gpus"] if gpu["uuid"] in possible]
    if not gpus:  # the training itself will say that its card is lost
        return None
    held = {gpu["uuid"]: _holders(gpu) for gpu in gpus}
    closed = {gpu["uuid"]: gpu for gpu in gpus if _is_closed(gpu, held[gpu["uuid"]], told["nvidia_mps"])}
    admitting = [uuid for uuid in held if uuid not in closed]
    admitting.sort(key=lambda uuid: (uuid not in had, bool(held[uuid])))
    return Look(admitting, ", ".join(_words(gpu, held[uuid]) for uuid, gpu in closed.items()))


def _holders(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in gpu["holders"] if one["state"] != "Z"]


def _is_closed(gpu: dict[str, Any], holders: list[dict[str, Any]], has_mps: bool) -> bool:
    if gpu["compute_mode"] == "exclusive-process":
        return bool(holders) and not has_mps
    return bool(gpu["compute_mode"] == "prohibited")


def _words(gpu: dict[str, Any], holders: list[dict[str, Any]]) -> str:
    by = ", ".join("pid %d (%s)" % (one["pid"], _who(one)) for one in holders)
    return (
        "GPU %d held by %s" % (gpu["index"], by) if by else "GPU %d: compute mode prohibited" % gpu["index"]
    )


def _who(holder: dict[str, Any]) -> str:
    if holder["run"]:
        return "run %s" % holder["run"]
    return str(holder["user"] or "uid %s" % holder["uid"])


def others(run: Run, taken: lease.Taken) -> str | None:
    """Return who else holds cards of a run, in words; None where nobody does."""
    seen = look(run)
    if seen is None:
        return "who holds the card is not told here: see with nvidia-smi on the host"
    return seen.holders if set(taken.gpus) - set(seen.admitting) else None


class Found(NamedTuple):
    """The cards of a run, those that it had or others in their place; who holds them where they do not admit it."""

    taken: lease.Taken
    holders: str | None


def come_by_cards(run: Run, taken: lease.Taken) -> Found | None:
    """Give a run cards that admit it, in place of those that do not; None where who holds them is not told."""
    seen = look(run)
    if seen is None:
        return None
    words = [seen.holders] if seen.holders else []
    try:
        fresh = lease.take(run, seen.admitting, len(taken.gpus), wait_s=0.0)
        if fresh.gpus:
            with contextlib.suppress(OSError):  # the next agent, or a sweep, removes what stays
                lease.keep_only(run, fresh.gpus)
            taken.release()
            return Found(fresh, None)
        words += [one.words for one in fresh.busy]
    except OSError:  # without leases it keeps what it has
        pass
    return Found(taken, None if set(taken.gpus) <= set(seen.admitting) else ", ".join(words))
