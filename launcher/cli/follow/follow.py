"""Follow a run from the terminal: Ctrl-C detaches, and the run's end decides the exit code."""

from __future__ import annotations

import contextlib
import functools
import gc
from typing import TYPE_CHECKING, NoReturn

import typer

from launcher.cli.signals import Terminated
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AuthRefusedError, MachineGoneError, ServiceAuthError, ServiceError
from launcher.rental import records
from launcher.rental.renting import RentalReason
from launcher.runs.follow.evidence import doubt
from launcher.runs.follow.following import finish
from launcher.runs.follow.read_position import show_more, show_rest
from launcher.runs.follow.sessions import follow_sessions, has_sessions
from launcher.runs.follow.view import View
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease

_EXIT: dict[str, int] = {State.SUCCEEDED: 0, State.WAITING: 5, State.INTERRUPTED: 5}


def follow_to_end(
    host: Host, local_copy: LocalCopy, view: View, client: HostClient | None, lease: Lease | None = None
) -> None:
    """Follow a run to its end and exit with its code. Ctrl-C detaches and exits with 0, SIGTERM with 143.

    With a `lease` on a rented machine, download the run's files at its end, then end the rental. On a detach, a process
    in the background takes that over.
    """
    gc.freeze()  # objects loaded so far live on: collecting among them takes a quarter of a fast run's time
    with contextlib.closing(view), _ensured(lease, view):
        try:
            state = _follow(host, local_copy, view, client, lease)
            if lease is not None:
                from launcher.rental.lease.release import end_rent
                from launcher.runs.rented.final_download import RunOnMachine

                try:
                    end_rent(lease, RunOnMachine(local_copy, host, view), view, state.state)
                except ServiceError as error:  # the run has ended, and the rental has not
                    if isinstance(error, ServiceAuthError):
                        with contextlib.suppress(OSError):
                            lease.note_refused()
                    if not lease.is_keeper and (lease.is_home or isinstance(error, ServiceAuthError)):
                        finish(local_copy, state, view)
                    raise
        except ServiceError as error:
            if lease is None or error.reason != RentalReason.LIMIT or not lease.rental.is_open:
                raise
            from launcher.rental.lease.release import end_rent
            from launcher.runs.rented.final_download import RunOnMachine

            end_rent(lease, RunOnMachine(local_copy, host, view), view, is_last=True)
            raise lease.over(RentalReason.LIMIT, "its time was up") from None
        except (
            AuthRefusedError
        ) as error:  # the connection that the user's ssh held open has ended, for example
            again = f"the run is not affected; follow it again   launch attach {local_copy.short}"
            raise type(error)(error.host, f"{error}\n  {again}") from None
        except MachineGoneError as error:
            if lease is not None:
                raise
            # Another process, which held the lease, has downloaded the run and ended the rental.
            state = _known_end(local_copy, str(error))
            show_more(local_copy, state, view)
        except (KeyboardInterrupt, Terminated) as error:
            if lease is not None:
                from launcher.rental.lease.release import hand_off

                hand_off(lease, view)
            view.note(detached(local_copy, is_home=lease is not None and lease.is_home))
            raise typer.Exit(Terminated.exit_code if isinstance(error, Terminated) else 0) from None
        except BrokenPipeError:  # the reader has closed the pipe, e.g. `launch … | head`
            if lease is not None:
                from launcher.rental.lease.handoff import hand_over

                hand_over(lease)
            view.note(detached(local_copy))
            raise
        finish(local_copy, state, view)
        if lease is None and records.is_looked_after(local_copy.run):
            view.note(
                "another process on this computer downloads its files and ends the rental   launch hosts"
            )
        elif (
            lease is None and records.open_for(local_copy.run) is not None
        ):  # the process with the lease was killed
            from launcher.runs.rented.rented_runs import end_rent_later

            end_rent_later(local_copy, view)
    _leave(state)


def show_end(local_copy: LocalCopy, view: View, why_gone: str) -> NoReturn:
    """Show a run's end from its local copy, without its host, and exit with its code.

    Raises MachineGoneError if the local copy has no end: the run had not ended when its machine was terminated.
    """
    state = _known_end(local_copy, why_gone)
    with contextlib.closing(view):
        show_rest(local_copy, state, view)
        rented = records.rented_for(local_copy.run)
        if rented is not None and rented.lost:
            view.note(rented.lost)
        finish(local_copy, state, view)
    _leave(state)
    raise typer.Exit(0)


def _known_end(local_copy: LocalCopy, why_gone: str) -> RunState:
    state = local_copy.state()
    if state is None or not is_terminal(state.state):
        raise MachineGoneError(local_copy.host().name, why_gone)
    return state


def _leave(state: RunState) -> None:
    """Exit with the code for a run's final state, unless it is 0."""
    code = 1 if doubt(state.evidence) else _EXIT.get(state.state, 1)
    if code:
        raise typer.Exit(code)


def _follow(
    host: Host, local_copy: LocalCopy, view: View, client: HostClient | None, lease: Lease | None
) -> RunState:
    """Follow a run. With a lease on a rented machine, stop at the rental's limit."""
    if lease is None:
        return follow_sessions(host, local_copy, view, client)
    lease.guard(client)
    watch = functools.partial(lease.watch, view)
    is_seen = not lease.is_keeper
    return follow_sessions(
        host,
        local_copy,
        view,
        client,
        pulls=lease.record.keeps,  # otherwise the end of the rental downloads all files
        watch=watch,
        opening=lease.opening,
        is_seen=is_seen,
    )


def _ensured(lease: Lease | None, view: View) -> contextlib.AbstractContextManager[None]:
    """Return a context that ensures the rental's end, even if this process fails."""
    if lease is None:
        return contextlib.nullcontext()
    from launcher.rental.lease.release import ensure_release

    return ensure_release(lease, view)


def detached(local_copy: LocalCopy, *, is_home: bool = False) -> str:
    """Return the message for a detach: the run continues, or it has ended with or without all of its files here."""
    state = local_copy.state()
    if state is not None and is_home:
        how = "has" if is_terminal(state.state) else "is"
        return f"detached; the run {how} {state.state}, and all of its files are here.   launch ls {local_copy.short}"
    if state is not None and is_terminal(state.state):
        return f"detached; the run has {state.state}, and not all of its files are here.   launch pull {local_copy.short}"
    if has_sessions(local_copy):
        return (
            "detached; a session that has begun continues to its end, and the next one begins with"
            f"   launch attach {local_copy.short} · launch recover --all     to end it   launch stop {local_copy.short}"
        )
    return f"detached; the run continues.   launch attach {local_copy.short} · launch stop {local_copy.short}"
