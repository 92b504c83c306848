"""Preview a move without making it: its refusals, the new plan, and its cost."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from launcher.backends.base.rental_choice import check_limited
from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy import move_records
from launcher.errors import UsageError
from launcher.runs.move.move_target import MoveRequest, Successor, arrival, connected, consented, wanted_like
from launcher.runs.move.moving import check_move
from launcher.runs.move.pending_stops import root_of
from launcher.runs.rented.rental_agreement import agree
from launcher.runs.resume.recovering import RecoverRequest, Recovery, RecoveryOutcome, recover_on
from launcher.runs.run_client import connect

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.values.host import Host


def preview_move(local_copy: LocalCopy, request: MoveRequest, view: View) -> Recovery:
    """Return the preview of a run's move and show its plan.

    No run is stopped, no machine is rented, and no file is sent. Raises the errors that a move raises before
    it stops the run or rents a machine: UsageError, RefusedError, RunError and HostError.
    """
    target, request = Lookup().host(request.host), request._replace(is_sure=True, wait_s=0.0)
    move_records.check_readable(local_copy)
    if (earlier := move_records.intention_of(local_copy)) is not None:
        if (elsewhere := move_records.elsewhere(local_copy)) is not None:
            raise UsageError(elsewhere)
        return _planned(
            local_copy, target, f"continues its interrupted move to {earlier.host} as {earlier.run}"
        )
    if backend_of(target).running.rental(target) is not None:
        return _rented(local_copy, target, request, view)
    with connected(view, functools.partial(connect, target)) as new:
        if new.root_id == root_of(local_copy):
            return recover_on(new, local_copy, RecoverRequest(is_dry=True), view)
        sender = check_move(local_copy, target, request, view, gives_up=False)
        arrival(new, local_copy, target, sender, request, Successor(), view)
    return _planned(
        local_copy, target, "continues from its last checkpoint; the checks pass, and nothing was sent"
    )


def _rented(local_copy: LocalCopy, target: Host, request: MoveRequest, view: View) -> Recovery:
    check_limited(target)
    sender = check_move(local_copy, target, request, view, gives_up=False)
    before = local_copy.whole_plan()
    consented(local_copy, before, target, sender, request, view)
    choice, _ = agree(wanted_like(before, target, request), view)
    if (asked := choice.cost.question) is not None:
        view.finding(asked)
    words = "continues from its last checkpoint; the checks pass, and nothing was rented or sent"
    return _planned(local_copy, target, words)._replace(rental=choice)


def _planned(local_copy: LocalCopy, target: Host, words: str) -> Recovery:
    state = local_copy.state()
    return Recovery(
        local_copy.run, target.name, RecoveryOutcome.PLANNED, state.state if state is not None else "", words
    )
