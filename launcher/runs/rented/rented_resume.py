"""Resume an ended run on a machine that is rented for it, or was kept.

The checkpoint, the code and the data of the earlier run come from its host, or from here if its machine is
gone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.base.rental_choice import check_limited
from launcher.config import job_variables, resolve
from launcher.config.job_check import on_end_findings, undeclared
from launcher.copy import move_records
from launcher.errors import MachineGoneError, RefusedError, RunError, UsageError
from launcher.rental.lease.handoff import hand_over, take_idle
from launcher.rental.lease.rental_lease import Lease
from launcher.rental.records import RentedMachine, rent_cost
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary, remembered
from launcher.runs.launch.preflight import settle
from launcher.runs.move.abandoning import fill_from_here, newest_here, sent_from_here
from launcher.runs.move.move_target import (
    MoveRequest,
    Successor,
    arrival,
    begin_there,
    connected,
    consented,
    refuse_unresumable,
    wanted_like,
)
from launcher.runs.move.moving import check_checkpoint, fill_from_old
from launcher.runs.pull import checkpoints_here
from launcher.runs.pull.checkpoint_pulling import WHOLE, LocalCheckpoint, pull_checkpoint
from launcher.runs.rented.acquire import acquire
from launcher.runs.rented.lost_machines import reach
from launcher.runs.rented.rented_runs import local_copy_of, pass_on
from launcher.runs.resume.resumed_plan import changed_plan, check_ended, check_settings, refuse_moved
from launcher.runs.run_client import connect, open_client
from launcher.values.record import is_terminal

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import Stage, View
    from launcher.runs.launch.launching import Started
    from launcher.runs.move.move_target import MoveTarget
    from launcher.runs.resume.resumed_plan import ResumeRequest
    from launcher.values.host import Host
    from launcher.values.plan import Plan


class _Source(NamedTuple):
    """The host that sent a run's plan, the run's local checkpoint, and the function that puts the run's files in place."""

    host: str
    home: LocalCheckpoint
    fill: Callable[[MoveTarget, LocalCopy, Stage], str]


def resume_on_rented(parent: LocalCopy, target: Host, request: ResumeRequest, view: View) -> Started:
    """Rent a machine, and start a run on it that resumes an ended run.

    Raises the errors of `resume` and of a launch.
    """
    check_limited(target)
    check_settings(request.settings, target)
    name = None if request.name is None else resolve.checked_name(request.name)
    source = _source(parent, target, request, view)
    before = parent.whole_plan()
    plan = changed_plan(before, request, name, target)
    _check_steps(plan, source.home, parent)
    against = undeclared(plan.settings, before.settings, parent.run)
    settle([*against, *job_variables.findings(plan.variables), *on_end_findings(plan.on_end)], view)
    asked = MoveRequest(target.name, request.profile, request.env_files, request.is_sure, request.wait_s)
    consented(parent, plan, target, source.host, asked, view)
    with acquire(wanted_like(plan, target, asked), view) as machine:
        next_run = Successor(machine.run, machine.plan, plan)
        started = _begin(parent, machine.host, source, asked._replace(is_sure=True), next_run, view)
    return started._replace(lease=machine.lease)


def _source(parent: LocalCopy, target: Host, request: ResumeRequest, view: View) -> _Source:
    """Gather a run's files from its host, or from here. Raises the errors of `resume`."""
    try:
        client = connected(view, functools.partial(reach, parent.host(), parent))
    except MachineGoneError as error:
        return _source_here(parent, target, request, error)
    with client as old:
        check_ended(known_summary(old, parent.run), parent, request)
        refuse_moved(old, parent)
        refresh(old, parent)
        refuse_unresumable(resumes=old.runs.outlook(parent.run).resumes, local_copy=parent, host=target.name)
        check_checkpoint(old, parent, target)
        with view.stage("pull") as stage:
            home = pull_checkpoint(old, parent, WHOLE, stage)
            stage.text = home.words
        return _Source(old.host, home, functools.partial(_fill_from_host, parent, home))


def _source_here(parent: LocalCopy, target: Host, request: ResumeRequest, why: MachineGoneError) -> _Source:
    """Find the local files of a run whose machine is gone. Raises `why` if the run had not ended."""
    if words := move_records.elsewhere(parent):
        raise UsageError(words)
    summary = remembered(parent)
    if not is_terminal(summary.state):
        raise why
    check_ended(summary, parent, request)
    sent, home = sent_from_here(parent, target), newest_here(parent, target)
    refuse_unresumable(resumes=checkpoints_here.resumes(parent), local_copy=parent, host=target.name)
    return _Source(
        parent.host().name,
        home,
        lambda place, child, stage: fill_from_here(place, home, sent, child, stage),
    )


def _fill_from_host(
    parent: LocalCopy, home: LocalCheckpoint, place: MoveTarget, child: LocalCopy, stage: Stage
) -> str:
    with open_client(parent.host(), parent) as old:
        return fill_from_old(old, place.contact.client, parent, home, child, stage)


def _check_steps(plan: Plan, home: LocalCheckpoint, parent: LocalCopy) -> None:
    if plan.steps is not None and home.checkpoint.step >= plan.steps:
        raise UsageError(
            f"{parent.run}: its checkpoint is of step {home.checkpoint.step}, and there are {plan.steps} steps: nothing is left to do\n"
            f"  train further   launch resume {parent.short} --set steps=…"
        )


def _begin(
    parent: LocalCopy, machine: Host, source: _Source, asked: MoveRequest, next_run: Successor, view: View
) -> Started:
    """Start the run on the machine that was rented for it."""
    client = connected(view, functools.partial(connect, machine))
    try:
        place = arrival(client, parent, machine, source.host, asked, next_run, view)
        fill = functools.partial(source.fill, place)
        return begin_there(place, next_run.id_of(place.plan.job), source.home, fill)
    except BaseException:
        client.close()
        raise


def resume_on_kept(found: RentedMachine, parent: LocalCopy, start: Callable[[Lease], Started]) -> Started:
    """Start a run on its parent's kept machine; the rental belongs to the new run from then on.

    Raises RunError for a machine that is not kept, UsageError if another process watches it.
    """
    again = f"on another machine   launch resume {parent.short} --host …     once this one is gone"
    if not found.record.keeps:
        raise RunError(
            f"{parent.run}: its rented machine is not kept: it is terminated after the last download\n"
            f"  end it first   launch attach {parent.short}     then   launch resume {parent.short} --host {found.record.machine.name}"
        )
    _refuse_without_checkpoint(found, parent)
    lease = take_idle(found)
    if lease is None:
        raise UsageError(f"{parent.run}: another process here manages its rented machine\n  {again}")
    former = lease.record.run
    try:
        started = start(lease)
    except BaseException:
        if (local_copy := local_copy_of(lease.record)) is not None and local_copy.run != former:
            hand_over(lease)  # the new run may have begun
        else:
            with contextlib.suppress(RefusedError):  # the former run's files are here by now
                pass_on(lease, former)
            _keep(lease)
        raise
    return started._replace(lease=lease)


def _refuse_without_checkpoint(found: RentedMachine, parent: LocalCopy) -> None:
    """Raise RunError for an ended run without a checkpoint to resume. The error names the cost of its kept machine."""
    state, cost = parent.state(), rent_cost(parent.run)
    if state is None or not is_terminal(state.state) or state.checkpoint is not None:
        return
    by_hand = "" if parent.is_freed else f"use that machine by hand   launch exec {parent.short} -- …     "
    raise RunError(
        f"{parent.run}: it has saved no checkpoint that launcher can continue from; its machine is kept: {cost.words if cost else ''}\n"
        f"  {by_hand}end it   launch reconcile --adopt {found.rental.instance}\n"
        f"  from its start, on another machine   launch rerun {parent.short} --host {found.record.machine.name}"
    )


def _keep(lease: Lease) -> None:
    """Leave a kept machine to a background process again, until its limit."""
    if local_copy_of(lease.record) is not None:
        hand_over(lease)
    else:
        lease.release()
