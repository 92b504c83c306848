"""Verbs about existing runs: list, stop, and run a command or a shell beside one."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from ..liveness import run_state
from ..record.files import REFUSED
from ..record.rundir import TERMINAL
from ..serving import command, contact
from ..serving.requests import RequestError, RunId, RunRequest, VerbReply
from ..serving.session import ClientSession, Verb
from ..store.shipping import LineWriter
from ..system import client_program
from ..system.terminal import Window
from . import run_lines


class RunsRequest(NamedTuple):
    """The runs to list: those in `runs`, or by default all that match the filter; see run_lines.py."""

    runs: Optional[List[str]] = None
    like: Optional[str] = None
    states: Optional[List[str]] = None
    most: Optional[int] = None


def runs(session: ClientSession, request: RunsRequest, _payload: bytes) -> VerbReply:
    """Send one summary line per run. Ids without a run on this host are left out."""
    lines = LineWriter(session.connection)
    if request.runs is not None:
        for line in run_lines.lines_of(session.root, request.runs):
            lines.put_text(line)
    else:
        choice = run_lines.RunFilter(request.like, request.states, request.most)
        for group in run_lines.chosen_lines(session.root, choice):
            lines.advance(run_lines.GROUP)
            for line in group:
                lines.put_text(line)
    lines.finish()
    return VerbReply({})


class StopRequest(NamedTuple):
    """A run, and the wish for it: `stop` saves a checkpoint first, `cancel` does not.

    `force` kills an agent that has not answered a wish.
    """

    run: RunId
    wish: str = ""
    force: bool = False


def wish(session: ClientSession, request: StopRequest, _payload: bytes) -> VerbReply:
    """Write a wish to stop or cancel a run, and wake its agent. Return the state right afterwards.

    `refused` says why the host's disk could not store the wish. The run is stopped anyway.
    """
    run = session.run(request.run)
    if request.wish not in ("stop", "cancel"):
        raise RequestError("bad-wish", "wish: it must be stop or cancel, not %r" % request.wish)
    state = run_state.state_of(run)
    if state["state"] in TERMINAL and not run_state.is_unwritten(state):
        return VerbReply({"state": state["state"]})
    contact.check_is_here(run)
    refusal = contact.stop(run, request.wish, by_force=request.force)
    refused = None if refusal is None else REFUSED.get(refusal.errno or 0, refusal.strerror)
    return VerbReply({"state": run_state.state_of(run)["state"], "refused": refused})


class Execute(NamedTuple):
    """A run, and the words of a command."""

    run: RunId
    command: List[str]


def execute(session: ClientSession, request: Execute, _payload: bytes) -> VerbReply:
    """Run a command beside a run while the client stays connected; see command.py."""
    run = session.run(request.run)
    contact.check_is_here(run)
    try:
        return VerbReply(command.execute(run, request.command, session.connection))
    except client_program.CommandError as error:
        raise RequestError(error.code, str(error)) from None


class Interact(NamedTuple):
    """A run, the words of a command (empty for a shell), and the kind and size of the client's terminal."""

    run: RunId
    command: List[str]
    kind: str
    rows: int
    columns: int


def interact(session: ClientSession, request: Interact, _payload: bytes) -> VerbReply:
    """Run a command on a terminal beside a run, with the client's input; see command.py."""
    run = session.run(request.run)
    contact.check_is_here(run)
    screen = command.Screen(request.kind, Window(request.rows, request.columns))
    try:
        return VerbReply(command.interact(run, request.command, screen, session.connection))
    except client_program.CommandError as error:
        raise RequestError(error.code, str(error)) from None


def entrance(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Return the command that starts an agent on the machine of the run's processes, if that is another one.

    Raises RequestError `no-job` if no agent can be started there now.
    """
    run = session.run(request.run)
    contact.check_is_here(run)
    contact.check_can_start(session.root)
    try:
        return VerbReply({"words": run_state.probe_of(run).entrance(run)})
    except client_program.CommandError as error:
        raise RequestError(error.code, str(error)) from None


VERBS = {
    "runs": Verb(RunsRequest, runs),
    "entrance": Verb(RunRequest, entrance),
    "wish": Verb(StopRequest, wish),
    "exec": Verb(Execute, execute),
    "interact": Verb(Interact, interact),
}
