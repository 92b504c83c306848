"""Find out which processes use a run's cards, and acquire cards that accept a new context.

This works only for an agent on the host itself. Leases (lease.py) record which run of ours has a card. This
module handles processes without a lease. Leftovers of our own runs are ended first.
"""

from __future__ import annotations

import contextlib
from typing import Callable, NamedTuple

from ..attempt.attempt_writer import AttemptWriter
from ..attempt.stopping import StartInterruption
from ..cards import lease, nvidia
from ..host import leftovers
from ..liveness import run_state
from ..record.rundir import Run

BUSY_S = 3.0  # between looks at a card that another process uses
UNSEEN_S = 30.0  # before the next try if users of the card cannot be seen; doubled each time


class CardUsers(NamedTuple):
    """The possible cards that accept the run now, its own first, and the users of the others in words."""

    admitting: list[str]
    holders: str


def card_users(run: Run) -> CardUsers | None:
    """Return the users of the cards that a run may have.

    None if they cannot be seen from here, or if the driver does not answer.
    """
    if not run_state.probe_of(run).sees_host:
        return None
    with contextlib.suppress(OSError):  # the sweep of the next launch ends the rest
        leftovers.end_leftovers(run.root)
    report = nvidia.read_cards(run.root)
    if report["gpu_error"] or report.get("holders_error") or not report["gpus"]:
        return None
    current = run.cards()
    possible = {*current, *(run_state.runtime_of(run).get("any_of") or ())} - lease.lost_by(run)
    gpus = [gpu for gpu in report["gpus"] if gpu["uuid"] in possible]
    if not gpus:  # the training itself will report that its card is lost
        return None
    held = {gpu["uuid"]: _holders(gpu) for gpu in gpus}
    closed = {gpu["uuid"]: gpu for gpu in gpus if _is_closed(gpu, held[gpu["uuid"]], report["nvidia_mps"])}
    admitting = [uuid for uuid in held if uuid not in closed]
    admitting.sort(key=lambda uuid: (uuid not in current, bool(held[uuid])))
    return CardUsers(admitting, ", ".join(_words(gpu, held[uuid]) for uuid, gpu in closed.items()))


def _holders(gpu: nvidia.CardReport) -> list[nvidia.CardHolder]:
    return [holder for holder in gpu["holders"] if holder["state"] != "Z"]


def _is_closed(gpu: nvidia.CardReport, holders: list[nvidia.CardHolder], has_mps: bool) -> bool:
    if gpu["compute_mode"] == "exclusive-process":
        return bool(holders) and not has_mps
    return bool(gpu["compute_mode"] == "prohibited")


def _words(gpu: nvidia.CardReport, holders: list[nvidia.CardHolder]) -> str:
    by = ", ".join("pid %d (%s)" % (holder["pid"], _owner(holder)) for holder in holders)
    return (
        "GPU %d held by %s" % (gpu["index"], by) if by else "GPU %d: compute mode prohibited" % gpu["index"]
    )


def _owner(holder: nvidia.CardHolder) -> str:
    if holder["receiver"]:
        return "handed over to %s by run %s" % (holder["receiver"], holder["run"])
    if holder["run"]:
        return "run %s" % holder["run"]
    return str(holder["user"] or "uid %s" % holder["uid"])


def others(run: Run, taken: lease.Taken) -> str | None:
    """Return the other processes that use a run's cards, in words; None if no other process does."""
    seen = card_users(run)
    if seen is None:
        return "the users of the card cannot be seen from here: run nvidia-smi on the host"
    return seen.holders if set(taken.gpus) - set(seen.admitting) else None


class AdmittedCards(NamedTuple):
    """The cards of a run, the same as before or others, and their users if they do not accept the run."""

    taken: lease.Taken
    holders: str | None


def acquire_cards(run: Run, taken: lease.Taken) -> AdmittedCards | None:
    """Replace those cards of a run that do not accept it; None if users of the cards cannot be seen."""
    seen = card_users(run)
    if seen is None:
        return None
    words = [seen.holders] if seen.holders else []
    try:
        fresh = lease.take(run, seen.admitting, len(taken.gpus), wait_s=0.0)
        if fresh.gpus:
            with contextlib.suppress(OSError):  # the next agent or a sweep removes the leases that stay
                lease.keep_only(run, fresh.gpus)
            taken.release()
            return AdmittedCards(fresh, None)
        words += [busy.words for busy in fresh.busy]
    except OSError:  # without leases it keeps the cards that it has
        pass
    return AdmittedCards(taken, None if set(taken.gpus) <= set(seen.admitting) else ", ".join(words))


def wait_for_cards(
    run: Run,
    taken: lease.Taken,
    account: AttemptWriter,
    interruption: StartInterruption,
    tries: int,
    on_move: Callable[[lease.Taken], None],
) -> lease.Taken:
    """Acquire cards that accept a new context, waiting if necessary; return them.

    The users of busy cards are recorded. `on_move` is called with other cards as soon as the run has them.
    If users of the cards cannot be seen, wait longer after each of `tries` failures.
    """
    recorded = None
    while not interruption.is_due():
        acquired = acquire_cards(run, taken)
        if acquired is None:
            interruption.pause(UNSEEN_S * 2 ** max(0, tries - 1))
            return taken
        before, taken = taken.gpus, acquired.taken
        if taken.gpus != before:
            account.record("evidence", {"cards": {"from": before, "to": taken.gpus}})
            on_move(taken)
        if acquired.holders is None:
            return taken
        if acquired.holders != recorded:
            recorded = acquired.holders
            account.say("resuming", "card", evidence={"card": recorded})
            account.record("evidence", {"card": recorded})
        interruption.pause(BUSY_S)
    return taken
