"""The end of a rent: what the run made comes home and is proven by its hash, then the machine is ended, then listed until gone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from launcher.errors import AgentError, HostError, LaunchError, RunError, ServiceError, UnreachableError
from launcher.hosts import Desk
from launcher.runs.checkpoint_pulling import WHOLE, pull_checkpoint
from launcher.runs.control import known_summary
from launcher.runs.following import LOST_LINKS, by_number, checkpoint_of, pause, refresh
from launcher.runs.mirror import Mirror
from launcher.runs.pulling import Choice, Pulled, came, pull, shown_path
from launcher.runs.run_desk import open_desk
from launcher.runs.tenant import Tenant
from launcher.runs.view import View
from launcher.values.output import Output
from launcher.values.record import State, is_terminal
from launcher.values.renting import RentalReason

OLDER_BYTES = 20_000_000_000
"""So much of a script's older checkpoints comes home: it costs a few minutes of the rent."""
NO_LIMIT = sys.maxsize
"""Everything comes home whatever its size: nothing can be fetched from a machine that is gone."""


def is_over(state: str) -> bool:
    """Whether nothing more happens on the machine unless a client has it happen."""
    return is_terminal(state) or state in (State.WAITING, State.INTERRUPTED)


def bring_home(desk: Desk, mirror: Mirror, state: str, view: View) -> None:
    """Bring everything home that a run made on a machine that will be gone, and prove it by the host's own digests.

    Of a run that has not succeeded that includes its newest whole checkpoint, if it has one, and of any run the checkpoints
    of a script that saves its own. Raises RunError if something cannot be sent or does not fit here, and HostError.
    """
    refresh(desk, mirror)
    with view.stage("home") as stage:
        pulled = pull(desk, mirror, Choice(NO_LIMIT), stage)
        _check_all_came(mirror, pulled)
        words = [came(pulled)]
        chosen, others = own_checkpoints(pulled.checkpoints)
        if chosen:
            own = pull(desk, mirror, Choice(NO_LIMIT, tuple(chosen)), stage)
            _check_all_came(mirror, own)
            words.append(f"{', '.join(chosen)}: {came(own)}")
        if state != State.SUCCEEDED:
            try:
                words.append(pull_checkpoint(desk, mirror, WHOLE, stage).words)
            except AgentError as error:
                if error.code != "no-checkpoint":
                    raise
        stage.text = "; ".join([*words, "each as its machine has it"])
    if others:
        view.note(f"older checkpoints are left behind, and go with the machine: {', '.join(others)}")


def _check_all_came(mirror: Mirror, pulled: Pulled) -> None:
    if pulled.left_out:
        path, why = min(pulled.left_out.items())
        more = f", and {len(pulled.left_out) - 1} more" if len(pulled.left_out) > 1 else ""
        raise RunError(f"{mirror.run}: {shown_path(path)} cannot be brought home: {why}{more}")


def own_checkpoints(files: Iterable[Output]) -> tuple[list[str], list[str]]:
    """Return the checkpoints that a script saved by itself and that come home, and those that do not.

    They may be all that it has made. The newest of each series comes, and older ones as long as they are not too large.
    """
    sizes: dict[str, int] = {}
    for file in files:
        if not file.path.startswith("checkpoints/"):  # of those that launcher has sealed one is enough
            folder = checkpoint_of(file.path)
            sizes[folder] = sizes.get(folder, 0) + file.size
    newest = {by_number(folder)[0]: folder for folder in sorted(sizes, key=by_number)}
    left, chosen = OLDER_BYTES, set(newest.values())
    for folder in sorted(sizes.keys() - chosen, key=lambda one: -by_number(one)[1]):
        left -= sizes[folder]
        if left < 0:
            break
        chosen.add(folder)
    return sorted(chosen, key=by_number), sorted(sizes.keys() - chosen, key=by_number)


def end_rent(tenant: Tenant, mirror: Mirror, state: str, view: View) -> None:
    """Bring a run that is over home, and end its rent; a machine that the user keeps has until its limit.

    If its files do not come home, that is said with what the machine costs, and a process in the background goes on trying.
    In that process it raises RunError then.
    """
    if not is_over(state):
        return
    if tenant.tenancy.keeps and not tenant.is_past and not _keep(tenant, mirror, view):
        return
    try:
        _bring_home_over_lost_links(tenant, mirror, state, view)
    except ServiceError:
        raise  # the rent is over
    except (HostError, RunError) as error:
        words = f"{tenant.host.name}: its machine is not ended, since not all is here: {str(error).splitlines()[0]}"
        if tenant.is_keeper:
            raise RunError(words) from error  # it tries again
        view.note(f"{words}   to lose the rest   launch reconcile --adopt {tenant.rental.instance}")
        view.note(look_after(tenant, mirror))
        return
    tenant.end(RentalReason.LIMIT if tenant.is_past else f"the run has ended: {state}", view)


def _keep(tenant: Tenant, mirror: Mirror, view: View) -> bool:
    """Leave a machine to a process in the background until its limit; in that process, return True once that is there.

    False means that the machine is not ours to end: it is left to that process, is gone, or is for another run.
    """
    if tenant.is_keeper:
        return tenant.is_left_alone_until(lambda: tenant.is_past)
    words, keeper = _kept(tenant), tenant.hand_over(mirror)
    view.note(f"{words}; process {keeper.pid} does then   {keeper.log}")
    return False


def end_at_limit(tenant: Tenant, mirror: Mirror, view: View) -> None:
    """End a rent whose time is up though its run has not ended; before that, bring home what there is.

    What cannot come is lost, which is said. Raises ServiceError if the machine is still billed.
    """
    try:
        with open_desk(tenant.host, mirror) as desk:
            bring_home(desk, mirror, known_summary(desk, mirror.run).state, view)
    except (LaunchError, OSError) as error:
        with contextlib.suppress(OSError):  # as of a log on a full disk
            view.note(
                f"{mirror.run}: not all came home before its machine is ended: {str(error).splitlines()[0]}"
            )
    tenant.end(RentalReason.LIMIT, view)


def look_after(tenant: Tenant, mirror: Mirror) -> str:
    """Leave a rental to a process in the background; return what is said about it. Raises ServiceError."""
    cost, price, until = tenant.cost, tenant.price, tenant.until
    keeper = tenant.hand_over(mirror)
    return (
        f"process {keeper.pid} goes on trying to bring home what is missing, and to end its machine, at the latest after {until}: "
        f"{cost} so far, {price}   {keeper.log}"
    )


def _bring_home_over_lost_links(tenant: Tenant, mirror: Mirror, state: str, view: View) -> None:
    """Bring a run home; a lost link is opened again a few times. Raises as `bring_home`, and as `Tenant.watch`."""
    losses = 0
    while True:
        try:
            with open_desk(tenant.host, mirror) as desk:
                bring_home(desk, mirror, state, view)
                return
        except UnreachableError as error:
            losses += 1
            if losses == LOST_LINKS:
                raise
            tenant.watch(view, error)
            pause(view, error, losses)


def _kept(tenant: Tenant) -> str:
    """Return what is said of a machine that the user keeps."""
    return (
        f"{tenant.host.name}: its machine is kept, as its table says: {tenant.cost} so far, {tenant.price}, until its limit at {tenant.until}"
        f"   end it   launch reconcile --adopt {tenant.rental.instance}"
    )
