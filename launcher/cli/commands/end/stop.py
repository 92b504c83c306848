"""stop: end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord
from launcher.cli.output.asking import YesFlag, check_last, check_loss
from launcher.cli.output.say import complain, say
from launcher.cli.signals import Terminated, waiting

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy


def stop(
    run: RunWord,
    host: HostOption = None,
    now: Annotated[bool, typer.Option("--now", help="End it immediately, without a checkpoint.")] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Stop a run: it saves a checkpoint if it can, then ends. The command waits for the run's end.

    Kaggle can only delete a session, with its outputs: without --now you are asked first.

    Examples:
        launch stop w8q2
        launch stop --now w8q2
    """
    from launcher.backends.registry import backend_of
    from launcher.errors import ConnectionLostError, UnreachableError
    from launcher.rental.records import open_for, rent_cost
    from launcher.runs.follow.evidence import words
    from launcher.runs.follow.summaries import has_live_session, summary_of
    from launcher.runs.locating import locate_live
    from launcher.runs.rented.rented_runs import leave_to_keeper, still_rented
    from launcher.runs.run_client import open_client
    from launcher.runs.run_stopping import stop as ask
    from launcher.values.record import Reason, is_terminal

    place, local_copy = locate_live(run, host, "stop")
    check_last(run, local_copy, "stop", yes=yes)
    if _is_over(local_copy, as_json=as_json):
        return
    local_copy.check_not_freed()
    grace_s = local_copy.record.plan().stop_grace_s
    try:
        opened = open_client(place, local_copy)
    except UnreachableError as error:
        if _is_over(local_copy, as_json=as_json):  # its rented machine was released since the check above
            return
        if (rent := still_rented(local_copy)) is not None:
            raise UnreachableError(error.host, f"{error}\n  {rent}") from error
        raise
    with opened as client:
        loss = backend_of(place).running.stop_loses
        if loss is not None and not now and has_live_session(client, local_copy.run):
            check_loss(local_copy, loss)
        try:
            with waiting(f"stopping {local_copy.run} on {place.name}"):
                before = summary_of(client, local_copy.run)
                row = ask(client, local_copy.run, now=now, grace_s=grace_s)
        except (KeyboardInterrupt, Terminated):
            complain(
                f"no longer waiting for the end of {local_copy.run}; if {place.name} has the request, the run still ends\n"
                f"  look   launch ps     again   launch stop {local_copy.short}"
            )
            raise
        except ConnectionLostError as error:
            if (rent := still_rented(local_copy)) is not None:
                raise ConnectionLostError(error.host, f"{error}\n  {rent}") from error
            raise
    ended = row.summary
    leave_to_keeper(local_copy)
    rented, cost = open_for(local_copy.run), rent_cost(local_copy.run)
    if as_json:
        from launcher.cli.json_output.end_shapes import StopShown
        from launcher.cli.output.answer import answer

        values = {"state": ended.state, "reason": ended.reason, "rehearsed": ended.rehearsed}
        cents = cost.cents if cost is not None else None
        answer(StopShown(run=local_copy.run, **values, problem=row.problem, rent_cents=cents))
        return
    reason = f": {ended.reason}" if ended.reason else ""  # missing if the disk was full at the run's end
    became = f"{ended.state}{reason}{f', step {ended.step}' if ended.step else ''}"
    if before is not None and is_terminal(before.state):
        became = f"had ended already ({became}): nothing was stopped"
    say(f"{local_copy.run} {became}")
    if cost is not None and rented is None:
        say(f"  its rented machine was given back: {cost.words}")
    elif cost is not None and rented is not None and rented.record.keeps:
        say(f"  its machine is kept: {cost.words}   launch hosts")
    elif cost is not None and not cost.is_held:
        say(f"  no process here can end its rented machine: {cost.words}   launch reconcile")
    elif cost is not None:
        say(f"  a process here downloads its files, then terminates the machine: {cost.words}   launch hosts")
    for line in filter(None, (", ".join(words(ended.evidence)), row.problem)):
        say(f"  {line}")
    if ended.reason == Reason.ENGINE_SILENT:
        say(f"  its container is removed once the engine answers again   launch gc --host {place.name}")


def _is_over(local_copy: LocalCopy, *, as_json: bool) -> bool:
    """Print the end of a run that has ended and whose rented machine is gone or being terminated. Return False for any other run."""
    from launcher.rental.records import rent_cost
    from launcher.runs.rented.machine_gone import gone
    from launcher.runs.rented.rented_runs import is_ending
    from launcher.values.record import is_terminal

    state, cost = local_copy.state(), rent_cost(local_copy.run)
    if (
        state is None
        or not is_terminal(state.state)
        or (not (goes_back := is_ending(local_copy)) and gone(local_copy) is None)
    ):
        return False
    if as_json:
        from launcher.cli.json_output.end_shapes import StopShown
        from launcher.cli.output.answer import answer

        answer(
            StopShown(
                run=local_copy.run,
                state=state.state,
                reason=state.reason,
                rehearsed=state.rehearsed,
                problem=None,
                rent_cents=cost.cents if cost is not None else None,
            )
        )
        return True
    paid = "" if cost is None else f"; rent {cost.words}"
    became = "its rented machine is being given back" if goes_back else "its rented machine was given back"
    say(f"{local_copy.run} has {state.state}, and {became}{paid}")
    return True
