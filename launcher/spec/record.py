"""What a run leaves on record: states, reasons, attempts, events.

The agent (launcher/remote) writes these files with the standard library alone; a round-trip test holds both to the
same words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from launcher.spec.base import Record
from launcher.spec.container import EngineWay


class State(StrEnum):
    """Where a run is.

    planned -> preparing -> running -> (stopping | resuming | waiting) -> succeeded | failed | cancelled.
    `interrupted` is derived: nobody holds the run's lock, and its last word was no end.
    `unreachable` is what a client sees, never what a run is.
    """

    PLANNED = "planned"
    RESERVED = "reserved"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    RESUMING = "resuming"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCEL_INCOMPLETE = "cancel-incomplete"
    INTERRUPTED = "interrupted"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.CANCEL_INCOMPLETE})


def is_terminal(state: object) -> bool:
    """Whether no attempt follows, by itself or at a contact. A state that this version does not know is no end."""
    return isinstance(state, str) and state in TERMINAL


class Reason(StrEnum):
    """Why a run is in its state."""

    COMPLETED = "completed"
    EXIT_ONLY = "exit-only"
    STOPPED_BY_USER = "stopped-by-user"
    CANCELLED_BY_USER = "cancelled-by-user"
    EXIT_NONZERO = "exit-nonzero"
    KILLED_BY_SIGNAL = "killed-by-signal"
    NO_COMPLETION_MARKER = "no-completion-marker"
    COMMAND_NOT_FOUND = "command-not-found"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    NOT_RESTARTABLE = "not-restartable"
    HOST_SHUTDOWN = "host-shutdown"
    AGENT_LOST = "agent-lost"
    NEVER_STARTED = "never-started"
    PROCESSES_REMAIN = "processes-remain"

    @property
    def state(self) -> State:
        """The state that this reason leads to."""
        return _STATE_OF[self]


_STATE_OF = {
    Reason.COMPLETED: State.SUCCEEDED,
    Reason.EXIT_ONLY: State.SUCCEEDED,
    Reason.STOPPED_BY_USER: State.CANCELLED,
    Reason.CANCELLED_BY_USER: State.CANCELLED,
    Reason.EXIT_NONZERO: State.FAILED,
    Reason.KILLED_BY_SIGNAL: State.FAILED,
    Reason.NO_COMPLETION_MARKER: State.FAILED,
    Reason.COMMAND_NOT_FOUND: State.FAILED,
    Reason.ATTEMPTS_EXHAUSTED: State.FAILED,
    Reason.NOT_RESTARTABLE: State.FAILED,
    Reason.HOST_SHUTDOWN: State.RESUMING,
    Reason.AGENT_LOST: State.RESUMING,
    Reason.NEVER_STARTED: State.FAILED,
    Reason.PROCESSES_REMAIN: State.CANCEL_INCOMPLETE,
}


class Attempt(Record):
    """The `attempt.json` of a numbered folder: what kind of folder it is, and the values in force."""

    version: int
    run: str
    kind: Literal["prepare", "attempt", "contact"]
    folder: int
    attempt: int | None = None
    time: float
    host_id: str
    rung: int | None = None
    previous: dict[str, Any] | None = None


class RunState(Record):
    """The `state.json` of a run's last folder, or what a host derives where nobody holds it. Times are the host's clock."""

    state: str
    reason: str | None = None
    attempt: int | None = None
    step: int | None = None
    loss: float | str | None = None
    time: float | None = None
    evidence: dict[str, Any] | None = None
    elsewhere: bool = False


class Summary(Record):
    """What a host says of a run in one line."""

    run: str
    state: str
    reason: str | None = None
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | str | None = None
    job: str | None = None
    card: str | None = None
    engine: EngineWay | None = None
    time: float | None = None


class Event(Record):
    """One line of `events.jsonl`. `time` is the host's clock, for display only."""

    version: int
    kind: str
    attempt: int | None = None
    rank: int = 0
    step: int | None = None
    time: float
    values: dict[str, Any] = {}
