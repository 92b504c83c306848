"""The records of a run: states, reasons, attempts, events.

The agent (launcher/agent) writes these files with the standard library alone; a round-trip test checks that
both use the same words.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Self

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from launcher.base.json_file import JsonObject
from launcher.values.base import Record
from launcher.values.reported.engine_access import EngineAccess
from launcher.values.states import TERMINAL as TERMINAL
from launcher.values.states import Reason as Reason
from launcher.values.states import State as State
from launcher.values.states import in_todays_words as in_todays_words
from launcher.values.states import is_terminal as is_terminal

Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A whole number that a float represents exactly, so that arithmetic with it never overflows."""
Moment = Annotated[float, Field(ge=-1e12, le=1e12)]
"""Seconds since 1970."""


class Parent(Record):
    """The parent run, whose training this run continues, and the checkpoint that it started from.

    `is_trainers` is set for a checkpoint of the script's own: whether transformers' Trainer saved it. If not, only
    the script knows its step, and `step` is the parent's last one.
    """

    run: str
    checkpoint: str
    step: Whole
    is_trainers: Annotated[bool | None, Field(exclude_if=lambda value: value is None)] = None

    @property
    def words(self) -> str:
        """The checkpoint for people, with its step if that is known."""
        return self.checkpoint if self.is_trainers is False else f"{self.checkpoint}, step {self.step}"


class JudgedState(Record):
    """A state with its reason, in the words of this version."""

    state: str
    reason: str | None = None

    _todays_words = field_validator("state", "reason", mode="before")(in_todays_words)


class FolderStart(Record):
    """The start of a numbered folder, from its `attempt.json`: the time by the host's clock, and the attempt.

    `parent` is the run that the recorded run continues, `job_id` the id of the recorded run's job in Slurm.
    """

    time: Moment | None = None
    attempt: Whole | None = None
    job_id: str | None = None
    parent: Parent | None = None


class AllocationSummary(Record):
    """The way in which a run gets its cards, from its plan."""

    how: str | None = None


class PlanSummary(Record):
    """The part of a plan that a client shows, as stored on the run's host."""

    job: str | None = None
    host: str | None = None
    steps: Whole | None = None
    stop_grace_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    profile: JsonObject = {}
    rehearsed: bool = False
    takes: list[str] | None = None
    adapt: bool = False
    pull_limit: Annotated[int, Field(ge=0)] = 2_000_000_000
    checkpoints: str = "host"
    allocation: AllocationSummary = AllocationSummary()

    @property
    def card(self) -> str | None:
        """The card's title."""
        title = self.profile.get("title")
        return title if isinstance(title, str) else None


DISK_WORDS = {"disk-full": "disk full", "quota": "disk quota used up", "read-only": "read-only file system"}
"""The reasons why a host's disk accepts no writes, by the agent's code."""


class Trouble(Record):
    """A condition that blocks a live run.

    For a silent agent or training, `since_s` is the duration of the silence.

    `kind` is for programs: a key of DISK_WORDS, `paused`, `frozen` (the agent), `silent` (the training) or
    `room` (a checkpoint does not fit).
    """

    what: str
    since_s: Annotated[float, Field(ge=0)] | None = None
    kind: str | None = None

    def on(self, host: str) -> Self:
        """Return the trouble; if the host's disk is the cause, its words name the host."""
        disk = DISK_WORDS.get(self.kind or "")
        return self.model_copy(update={"what": f"{disk} on {host}, the run waits"}) if disk else self

    @property
    def words(self) -> str:
        """The trouble in a clause, e.g. `its agent is frozen for 25 s`."""
        return self.what if self.since_s is None else f"{self.what} for {self.since_s:.0f} s"


class RunState(JudgedState):
    """The `state.json` of a run's last folder, or the host's derived state if the lock is free.

    Times are the host's clock. `took_s` is the running time of the run over all its attempts so far.
    """

    attempt: Whole | None = None
    step: Whole | None = None
    loss: float | str | None = None
    checkpoint: Whole | None = None
    time: Moment | None = None
    took_s: Annotated[float, Field(ge=0)] | None = None
    evidence: JsonObject | None = None
    remedy: JsonObject | None = None
    trouble: Trouble | None = None
    rehearsed: bool = False
    elsewhere: bool = False
    consumed: list[str] | None = None

    def on(self, host: str) -> Self:
        """Return the state as displayed for a run on a host."""
        return self if self.trouble is None else self.model_copy(update={"trouble": self.trouble.on(host)})

    @property
    def taken(self) -> set[str] | None:
        """The parts of the plan's precision and split that the training used; None if that was not recorded."""
        return None if self.consumed is None else {"precision", "split"} & {*self.consumed}


class RuntimeRecord(Record):
    """The runtime of a run on its host, and its container engine if it has one."""

    kind: str
    engine: EngineAccess | None = None


class Summary(JudgedState):
    """A run in one line, as its host reports it. `time` is its launch, `ended` the time of its last state.

    `ended` is None if the end was not recorded, e.g. because the disk was full. `job` is the job's name.
    `job_id` is the id of the run's job in Slurm; None elsewhere, and until the host knows it. `took_s` is the
    running time of the run over all its attempts; None if unknown.
    """

    run: str
    attempt: Whole | None = None
    step: Whole | None = None
    steps: Whole | None = None
    loss: float | str | None = None
    grace_s: Annotated[float, Field(ge=0, le=86400)] | None = None
    job: str | None = None
    job_id: str | None = None
    card: str | None = None
    engine: EngineAccess | None = None
    runtime: RuntimeRecord | None = None
    evidence: JsonObject | None = None
    remedy: JsonObject | None = None
    trouble: Trouble | None = None
    rehearsed: bool = False
    parent: Parent | None = None
    time: Moment | None = None
    ended: Moment | None = None
    took_s: Annotated[float, Field(ge=0)] | None = None

    @property
    def recorded_runtime(self) -> RuntimeRecord:
        """The run's runtime. Agents before November 2026 reported only the engine."""
        if self.runtime is not None:
            return self.runtime
        return RuntimeRecord(kind="native" if self.engine is None else "docker", engine=self.engine)

    @property
    def short(self) -> str:
        """The last letters of the run's id."""
        return self.run.rpartition("-")[2]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="ignore", defer_build=True))
class Event:
    """One line of `events.jsonl`. `time` is the host's clock, for display only.

    `source` is `log` for values read from printed lines, `hook` for the start-up hook, None for the script
    itself. Like a Record, but a dataclass: a run may have millions of events, and a dataclass is built in
    half the time.
    """

    version: Whole
    kind: str
    attempt: Whole | None = None
    rank: Whole = 0
    step: Whole | None = None
    time: Moment
    values: JsonObject = field(default_factory=dict)
    source: str | None = None
