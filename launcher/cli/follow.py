"""Follow a run from the terminal: Ctrl-C detaches, and the run's end decides the exit code."""

from __future__ import annotations

import contextlib
import functools
import gc
from typing import TYPE_CHECKING, NoReturn

import typer

from launcher.cli.keeping import handing_over
from launcher.cli.signals import Terminated
from launcher.errors import MachineGoneError, ServiceAuthError, ServiceError
from launcher.hosts import Desk
from launcher.runs import tenancies
from launcher.runs.evidence import doubt
from launcher.runs.following import finish
from launcher.runs.mirror import Mirror
from launcher.runs.sessions import follow_sessions, has_sessions
from launcher.runs.shown import show_more, show_rest
from launcher.runs.view import View
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal
from launcher.values.renting import RentalReason

if TYPE_CHECKING:
    from launcher.runs.tenant import Tenant

_EXIT: dict[str, int] = {State.SUCCEEDED: 0, State.WAITING: 5, State.INTERRUPTED: 5}


def follow_to_end(
    host: Host, mirror: Mirror, view: View, desk: Desk | None, tenant: Tenant | None = None
) -> None:
    """Follow a run to its end and exit with its code. Ctrl-C detaches and exits with 0, SIGTERM with 143.

    If its machine is rented and `tenant` looks after it, its files come home and the rent is ended then. Who detaches
    leaves that to a process in the background.
    """
    gc.freeze()  # what is loaded by now stays: to look for garbage in it, too, takes a quarter of a fast run's time
    with contextlib.closing(view), handing_over(tenant, mirror, view):
        try:
            state = _follow(host, mirror, view, desk, tenant)
            if tenant is not None:
                from launcher.runs.rent_ending import end_rent

                try:
                    end_rent(tenant, mirror, state.state, view)
                except ServiceError as error:  # the rent goes on, and the run has ended
                    if isinstance(error, ServiceAuthError):
                        with contextlib.suppress(OSError):
                            tenant.note_refused()
                    if not tenant.is_keeper and (tenant.is_home or isinstance(error, ServiceAuthError)):
                        finish(mirror, state, view)
                    raise
        except ServiceError as error:
            if tenant is None or error.reason != RentalReason.LIMIT or not tenant.rental.is_open:
                raise
            from launcher.runs.rent_ending import end_at_limit

            end_at_limit(tenant, mirror, view)
            raise tenant.over(RentalReason.LIMIT, "its time was up") from None
        except MachineGoneError as error:
            if tenant is not None:
                raise
            # The process that looked after it has brought the run home meanwhile.
            state = _known_end(mirror, str(error))
            show_more(mirror, state, view)
        except (KeyboardInterrupt, Terminated) as error:
            if tenant is not None:
                from launcher.runs.rent_handing import hand_over

                hand_over(tenant, mirror, view)
            view.note(detached(mirror, is_home=tenant is not None and tenant.is_home))
            raise typer.Exit(Terminated.exit_code if isinstance(error, Terminated) else 0) from None
        except BrokenPipeError:  # the reader has closed the pipe, as `launch … | head` does
            if tenant is not None:
                tenant.hand_over(mirror)
            view.note(detached(mirror))
            raise
        finish(mirror, state, view)
        if tenant is None and tenancies.is_looked_after(mirror):
            view.note("another process here brings its files home and ends the rent   launch hosts")
        elif tenant is None and tenancies.open_for(mirror) is not None:  # the process that did was killed
            from launcher.runs.rent_handing import end_rent_later

            end_rent_later(mirror, view)
    _leave(state)


def show_end(mirror: Mirror, view: View, why_gone: str) -> NoReturn:
    """Show how a run ended from what is here, without its host, and exit with its code.

    Raises MachineGoneError if its end is not here: it had not ended when its machine went.
    """
    state = _known_end(mirror, why_gone)
    with contextlib.closing(view):
        show_rest(mirror, state, view)
        if lost := tenancies.lost(mirror):
            view.note(lost)
        finish(mirror, state, view)
    _leave(state)
    raise typer.Exit(0)


def _known_end(mirror: Mirror, why_gone: str) -> RunState:
    state = mirror.state()
    if state is None or not is_terminal(state.state):
        raise MachineGoneError(mirror.host().name, why_gone)
    return state


def _leave(state: RunState) -> None:
    """Exit with the code of a run's end, if that is not 0."""
    code = 1 if doubt(state.evidence) else _EXIT.get(state.state, 1)
    if code:
        raise typer.Exit(code)


def _follow(host: Host, mirror: Mirror, view: View, desk: Desk | None, tenant: Tenant | None) -> RunState:
    """Follow a run; if this process looks after its rented machine, no longer than that is rented."""
    if tenant is None:
        return follow_sessions(host, mirror, view, desk)
    tenant.guard(desk)
    watch = functools.partial(tenant.watch, view)
    is_seen = not tenant.is_keeper
    return follow_sessions(host, mirror, view, desk, watch=watch, opening=tenant.opening, is_seen=is_seen)


def detached(mirror: Mirror, *, is_home: bool = False) -> str:
    """Return what to say when a follower leaves: the run goes on, or it has ended and its files were on their way."""
    state = mirror.state()
    if state is not None and is_home:
        how = "has" if is_terminal(state.state) else "is"
        return f"detached; the run {how} {state.state}, and all of its files are here.   launch ls {mirror.short}"
    if state is not None and is_terminal(state.state):
        return f"detached; the run has {state.state}, and not all of its files are here.   launch pull {mirror.short}"
    if has_sessions(mirror):
        return (
            "detached; the run continues to the end of its session, and the next one begins with"
            f"   launch attach {mirror.short} · launch recover --all     to end it   launch stop {mirror.short}"
        )
    return f"detached; the run continues.   launch attach {mirror.short} · launch stop {mirror.short}"
