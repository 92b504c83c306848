"""A machine of ours that the user names to be ended: what its run made comes home first, or is given up by name."""

from __future__ import annotations

from launcher.errors import HostError, LaunchError, NoRunError, RunError, ServiceError, UnreachableError
from launcher.runs import tenancies
from launcher.runs.mirror import Mirror
from launcher.runs.rent_ending import bring_home, is_over
from launcher.runs.run_desk import open_desk
from launcher.runs.summaries import known_summary
from launcher.runs.tenancies import RentedMachine
from launcher.runs.tenant import Tenant, take_idle
from launcher.runs.view import View


def bring_home_first(found: RentedMachine, view: View, *, is_due: bool) -> None:
    """Bring home what a machine has that is to be ended now.

    Raises RunError if its run goes on, or not all comes: the machine is looked after as before then, unless it `is_due`.
    That is only said.
    """
    mirror = tenancies.mirror_of(found.tenancy)
    if mirror is None:
        return  # its run never began
    lose = (
        f"end it now, and lose what is only there   launch reconcile --adopt {found.rental.instance} --force"
    )
    with view.stage("adopt") as stage:
        stage.progress(f"asking for the machine of {mirror.short}, if a process here looks after it")
        tenant = take_idle(found)
        stage.text = None
    if tenant is None:
        if not is_due:
            raise RunError(
                f"{mirror.run}: its machine is not ended: a process here looks after it, and ends it once all has come home\n"
                f"  have the run end   launch stop {mirror.short}\n  {lose}"
            )
        return
    try:
        _bring_home(tenant, mirror, view)
    except ServiceError as error:
        view.note(str(error))  # the machine is gone
    except NoRunError:
        return  # nothing can come home
    except (HostError, LaunchError) as error:
        words = f"{mirror.run}: {'not all is here' if is_due else 'its machine is not ended'}: {str(error).splitlines()[0]}"
        if is_due:
            view.note(words)
            return
        tenant.hand_over(mirror)
        raise RunError(f"{words}\n  {lose}") from error
    finally:
        tenant.release()


def _bring_home(tenant: Tenant, mirror: Mirror, view: View) -> None:
    try:
        with open_desk(tenant.host, mirror, tenant.opening) as desk:
            state = known_summary(desk, mirror.run).state
            if not is_over(state) and not tenant.is_due:
                raise RunError(f"its run goes on: it is {state}   launch stop {mirror.short}")
            bring_home(desk, mirror, view)
    except UnreachableError as error:
        tenant.watch(view, error)
        raise
