"""attach: follow an existing run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, QuietFlag, RunWord

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.rental.lease.rental_lease import Lease
    from launcher.runs.follow.view import View
    from launcher.values.host import Host


def attach(
    run: RunWord = "last",
    host: HostOption = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="With --host: add to your runs every run on that host that has a local copy."
        ),
    ] = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Follow a run from where this client left off. An interrupted run is recovered first.

    A run that was not launched from this account is looked up on --host first, and becomes one of your runs.

    Examples:
        launch attach last
        launch attach --host lab w8q2
        launch attach --host lab --all
    """
    if every:
        _enter_all(host, as_json=as_json)
        return
    from launcher.cli.follow.follow import show_end
    from launcher.cli.follow.screens import make_view
    from launcher.runs.locating import locate
    from launcher.runs.rented.machine_gone import gone
    from launcher.runs.rented.rented_runs import lease_for

    view = make_view(as_json, is_quiet=quiet)
    place, local_copy = locate(run, host)
    if words := gone(local_copy):
        show_end(local_copy, view, words)
    if local_copy.is_freed:
        view.note(f"it was removed from {place.name}; its local copy   launch ls {local_copy.short}")
        show_end(local_copy, view, "")  # only an ended run can be removed
    lease = lease_for(local_copy, view)
    if lease is None:
        _follow(place, local_copy, view, None)
        return
    from launcher.rental.lease.release import ensure_release  # few runs are on a rented machine

    if lease.is_keeper:
        _keep(place, local_copy, view, lease)
        return
    with ensure_release(lease, view):
        _follow(place, local_copy, view, lease)


def _keep(place: Host, local_copy: LocalCopy, view: View, lease: Lease) -> None:
    """Manage a rental in the background until its end.

    Store the position up to which the user has seen the output: a later attach shows the rest.
    """
    import contextlib

    from launcher.rental.lease.rental_keeper import keep
    from launcher.runs.follow import read_position
    from launcher.runs.rented.final_download import RunOnMachine

    def follow() -> None:
        with contextlib.suppress(typer.Exit):
            _follow(place, local_copy, view, lease)

    with contextlib.suppress(OSError):  # if this fails, a later attach repeats some output
        read_position.begin(local_copy)
    keep(follow, lease, RunOnMachine(local_copy, place, view), view)


def _enter_all(host: str | None, *, as_json: bool) -> None:
    """Add to the index each run on the host that has a local copy."""
    from launcher.cli.json_output.run_shapes import Entered
    from launcher.cli.output.answer import answer
    from launcher.cli.output.say import say
    from launcher.copy.runs_folder import runs_folder
    from launcher.errors import UsageError
    from launcher.runs.locating import attach_all, foreign_here

    if host is None:
        raise UsageError("--all needs a host\n  example   launch attach --host lab --all")
    entered = attach_all(host)
    left = foreign_here()
    if as_json:
        answer(Entered(runs=entered, foreign=left))
        return
    many = f"{len(entered)} {'run was' if len(entered) == 1 else 'runs were'} added to yours"
    say(many if entered else "no run was added to yours", *(f"  {run}" for run in entered))
    if left:
        names = ", ".join(run.rpartition("-")[2] for run in left)
        say(f"not on {host}, so not added: {names}   to remove such a copy   rm -r {runs_folder()}/RUN")


def _follow(place: Host, local_copy: LocalCopy, view: View, lease: Lease | None) -> None:
    """Recover the run if it is interrupted or waiting, and follow it to its end."""
    from launcher.cli.follow.fetch import EARLIER
    from launcher.cli.follow.follow import follow_to_end, show_end
    from launcher.copy import move_records
    from launcher.copy.last_seen import last_answer
    from launcher.errors import MachineGoneError, UnreachableError
    from launcher.runs.follow.sessions import has_sessions
    from launcher.runs.rented.lost_machines import reach
    from launcher.runs.resume.recovering import RecoveryOutcome, show_and_recover
    from launcher.values.states import is_terminal

    client = None
    elsewhere = move_records.elsewhere(local_copy)
    try:
        client = reach(place, local_copy)
        if elsewhere is not None:
            view.note(elsewhere)
        elif lease is not None and lease.is_due:
            pass  # the time reserved for downloads has begun: the run would not continue
        elif show_and_recover(client, local_copy, view) == RecoveryOutcome.RECOVERED:
            what = (
                ": its last session is over, and the next one is starting"
                if has_sessions(local_copy)
                else " was interrupted or waiting; its leftover processes have been ended, and it continues"
            )
            view.note(f"{local_copy.run}{what}")
    except MachineGoneError as error:
        show_end(local_copy, view, str(error))
    except UnreachableError as error:
        if elsewhere is not None:
            raise UnreachableError(error.host, f"{error}\n  {elsewhere}") from error
        state = local_copy.state()
        if lease is None and state is not None and is_terminal(state.state):
            view.note(f"{str(error).splitlines()[0]}; {last_answer(local_copy) or EARLIER}")
            show_end(local_copy, view, str(error))
        view.lost(error, 1, 0.0)  # `follow_to_end` retries without a limit
    follow_to_end(place, local_copy, view, client, lease)
