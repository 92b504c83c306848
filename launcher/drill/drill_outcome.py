"""The faults of `launch drill`, and what came of one."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

STEPS, INTERVAL, SAMPLES, AT = 40, 5, 4, 13
"""Of the small job: its steps, after how many it saves a checkpoint, its samples a step, and the step that is hurt."""


class By(StrEnum):
    """Who brings a fault about."""

    JOB = "job"
    HOST = "host"
    LINK = "link"


class Fault(NamedTuple):
    """A fault that needs no root.

    `runtimes` are those in which it can happen; `reason` is why the run fails, None if it goes on and succeeds. `intervals`
    is how many checkpoint intervals may be trained again. `seconds` is how long a run with it takes, about. It may come in
    the steps from `first` on.
    """

    name: str
    title: str
    by: By
    runtimes: tuple[str, ...] = ("native", "docker", "slurm")
    reason: str | None = None
    intervals: int = 1
    seconds: int = 10
    first: int = 1

    @property
    def expected(self) -> str:
        """What is expected of the run, in words."""
        return "goes on" if self.reason is None else f"ends: {self.reason}"


FAULTS = (
    Fault("trainer-killed", "the training gets SIGKILL", By.HOST),
    Fault("agent-killed", "the agent gets SIGKILL", By.HOST, seconds=13),
    Fault("link-cut", "the connection of the client breaks", By.LINK, intervals=0),
    Fault("hang", "the training sleeps for ever", By.JOB, seconds=15),
    Fault("folder-full", "a folder of the job is full", By.JOB, ("native",), reason="disk-full"),
    Fault("checkpoint-torn", "the newest checkpoint is cut short", By.HOST, intervals=2, first=INTERVAL + 2),
    Fault("job-requeued", "Slurm ends the job and starts it again", By.HOST, ("slurm",), seconds=40),
)
"""The rows of a drill."""


class Planned(NamedTuple):
    """A fault, and the step in which it comes."""

    fault: Fault
    at: int = AT

    @property
    def name(self) -> str:
        """The fault as `--fault` names it."""
        return self.fault.name if self.at == AT else f"{self.fault.name}@{self.at}"


class DrillResult(StrEnum):
    """What a row of a drill says."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not-run"


class FaultOutcome(NamedTuple):
    """What came of a fault.

    `failure` is the class of the failure that the run has on record, `remedy` what it did about it, both None if it noticed
    none. `steps_again` counts the steps that were trained again; `silent_s` is how long no step began after the fault, None where
    the training was not interrupted. `left` is what the host still has of it. `problems` say what is not as expected, or
    why the fault was not brought about.
    """

    planned: Planned
    result: DrillResult
    run: str | None = None
    failure: str | None = None
    remedy: str | None = None
    steps_again: int | None = None
    silent_s: float | None = None
    left: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def fault(self) -> str:
        """The fault as `--fault` names it."""
        return self.planned.name


class Drill(NamedTuple):
    """A drill: where it was, and its rows. `evidence` is the folder here with the ledger of each row."""

    host: str
    runtime: str
    rows: tuple[FaultOutcome, ...]
    evidence: str
