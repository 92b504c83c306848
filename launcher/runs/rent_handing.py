"""A rent is handed on: to a process in the background, which brings the run's files home and ends it; or nobody needs it."""

from __future__ import annotations

from launcher.errors import HostError, LaunchError
from launcher.runs import tenancies
from launcher.runs.mirror import Mirror
from launcher.runs.rent_ending import cron_note
from launcher.runs.tenant import Tenant, leave_to_keeper
from launcher.runs.view import View


def hand_over(tenant: Tenant, mirror: Mirror, view: View) -> None:
    """Leave a rental to a process in the background, and say which, and what would end the rent from another machine."""
    if tenant.is_keeper:  # it was to end: the machine here may be going down
        view.note(
            f"nobody looks after the rental now; {tenant.cost} so far, {tenant.price}   launch attach {mirror.short}"
        )
        tenant.release()
        return
    if tenant.is_home:
        words = f"{tenant.cost} so far, {tenant.price}"
        keeper = tenant.hand_over(mirror)
        view.note(f"all of its files are here; process {keeper.pid} ends the rent: {words}   {keeper.log}")
        return
    cron, words = cron_note(tenant), f"{tenant.cost} so far, {tenant.price}, at most until {tenant.until}"
    keeper = tenant.hand_over(mirror)
    view.note(f"process {keeper.pid} brings its files home, then ends the rent: {words}   {keeper.log}")
    view.note(cron)


def give_up(tenant: Tenant, view: View) -> None:
    """End the rent of a machine on which no run began, and look after it no more. Raises ServiceError as the tenant does."""
    try:
        tenant.give_up(view)
    finally:
        tenant.release()


def leave(tenant: Tenant, view: View) -> None:
    """End the rent of a launch that failed, unless its run may have begun: then it is looked after."""
    mirror = tenancies.mirror_of(tenant.tenancy)
    if mirror is None:
        give_up(tenant, view)
        return
    keeper = tenant.hand_over(mirror)
    view.note(
        f"{mirror.run} may have begun: process {keeper.pid} looks after it, and ends the rent   {keeper.log}"
    )


def end_rent_later(mirror: Mirror, view: View) -> None:
    """Have a process in the background end the rent of a run's machine, if it is rented and no other does: the run has ended there."""
    try:
        leave_to_keeper(mirror)
    except (HostError, LaunchError, OSError) as error:
        view.note(
            f"{str(error).splitlines()[0]}: the machine of {mirror.run} is still rented   launch reconcile"
        )
