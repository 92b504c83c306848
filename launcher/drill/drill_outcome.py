"""The faults of `launch drill`, and the outcome of each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

STEPS, INTERVAL, SAMPLES, AT = 40, 5, 4, 13
"""The small job's steps, steps per checkpoint, samples per step, and the step of the fault."""


class By(StrEnum):
    """The cause of a fault: the job itself, a shell on the host, or the client's connection."""

    JOB = "job"
    HOST = "host"
    LINK = "link"


class Fault(NamedTuple):
    """A fault that needs no root.

    `runtimes` are those in which it is possible. `reason` is the expected reason of the failure, None if the
    run must succeed. `intervals` is the allowed number of checkpoint intervals trained again. `seconds` is
    the approximate length of its run. `first` is the first step in which it may happen.
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
        """The expected result, in words."""
        return "recovers" if self.reason is None else f"ends: {self.reason}"


FAULTS = (
    Fault("trainer-killed", "the training gets SIGKILL", By.HOST),
    Fault("agent-killed", "the agent gets SIGKILL", By.HOST, seconds=13),
    Fault("link-cut", "the connection of the client breaks", By.LINK, intervals=0),
    Fault("hang", "the training sleeps for ever", By.JOB, seconds=15),
    Fault("folder-full", "a folder of the job is full", By.JOB, ("native",), reason="disk-full"),
    Fault("checkpoint-torn", "the newest checkpoint is cut short", By.HOST, intervals=2, first=INTERVAL + 2),
    Fault("job-requeued", "Slurm ends the job and starts it again", By.HOST, ("slurm",), seconds=40),
)
"""All faults. Each is one row of a drill."""


class Planned(NamedTuple):
    """A fault, and the step in which it happens."""

    fault: Fault
    at: int = AT

    @property
    def name(self) -> str:
        """The fault as in `--fault`."""
        return self.fault.name if self.at == AT else f"{self.fault.name}@{self.at}"


class DrillResult(StrEnum):
    """The result of a drill's row."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not-run"


class FaultOutcome(NamedTuple):
    """The outcome of a fault.

    `failure` is the class of the recorded failure and `remedy` the recorded remedy; both are None if the run
    recorded none. `steps_again` counts the steps trained again. `silent_s` is the time without a step after
    the fault, None if the training was not interrupted. `left` lists the remains on the host. `problems` are
    unexpected results, or the reason why the fault was not caused.
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
        """The fault as in `--fault`."""
        return self.planned.name


class Drill(NamedTuple):
    """A drill: its host and runtime, and its rows.

    `evidence` is the local folder with the ledger of each row.
    """

    host: str
    runtime: str
    rows: tuple[FaultOutcome, ...]
    evidence: str
