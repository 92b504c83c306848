"""The agent's answers, one record for each kind. Probes, plans and summaries have separate modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.values.base import Record
from launcher.values.record import Parent
from launcher.values.reported.engine_access import RunLocation
from launcher.values.software.packages import InstalledPackages


class PreparedRun(Record):
    """A run whose folder was made: the paths that its container would need, and the cards (UUIDs) that it leased, if any."""

    place: RunLocation
    gpus: tuple[str, ...] | None = None


class ResumedRun(Record):
    """A run after `resume`.

    `place` is set if the client has to start the run; `gpus` are the cards that it leased. `silence_left_s`
    is set if the run's last agent is silent but does not count as dead yet; it is the number of seconds until
    the agent does. `secrets` lists missing secrets. `is_new` says that the run needs a new container. If
    `is_ours` is false, another client was faster: `by` names it.
    """

    state: str
    silence_left_s: float | None = None
    secrets: tuple[str, ...] = ()
    place: RunLocation | None = None
    gpus: tuple[str, ...] = ()
    is_new: bool = False
    is_ours: bool = True
    by: str | None = None


class BusyCard(Record):
    """A card (UUID) that cannot be leased: held by a run, or `queued` for a launch that asked earlier."""

    gpu: str = ""
    run: str | None = None
    state: str | None = None


class MovedTo(Record):
    """The new place of a moved run: the new run, its host as a client names it, and the id of the host's root."""

    run: Annotated[str, Field(max_length=100)]
    host: Annotated[str, Field(max_length=300)] = ""
    root: Annotated[str, Field(max_length=300)] = ""


class ResumeOptions(Record):
    """Whether a run's script can resume, the run's new place if it was moved, and whether the run never began (`half_made`)."""

    resumes: bool
    moved: MovedTo | None = None
    half_made: bool = False


class RejectedCheckpoint(Record):
    """A checkpoint that cannot be used, and the reason."""

    checkpoint: str
    wrong: str


class Inheritance(Record):
    """The values that a run took over from its parent: the checkpoint, the changes by remedies, and the rejected checkpoints."""

    parent: Parent
    changes: dict[str, bool | int | float | str] = {}
    passed_over: list[RejectedCheckpoint] = []


class CommandEnd(Record):
    """The end of a command: with an exit code, or by a signal."""

    exit: int | None = None
    signal: int | None = None


class Freed(Record):
    """The number of bytes that the removal of a run freed."""

    bytes: Annotated[int, Field(ge=0)]


class HeldLock(Record):
    """Whether this connection holds a lock of the host, and the label of the host's root."""

    held: bool
    root: str = ""


class MadeEnvironment(Record):
    """The packages of a new environment, and the program that installed them (`by`), or the `step` that failed."""

    packages: InstalledPackages | None = None
    step: str | None = None
    by: str | None = None


class RemovedThing(Record):
    """A removed item that no run of the host uses: its kind, its path (below the root, or absolute), its bytes."""

    kind: str
    path: str
    bytes: Annotated[int, Field(ge=0)]


class Garbage(Record):
    """The agent's removals, and the facts by which the client decides about items that the agent cannot remove.

    `runs` have not ended, `images` are named by a run, `root` is the label of items that belong to this root.
    `unreadable` are the runs that cannot be read, with the reasons.
    """

    items: list[RemovedThing] = []
    runs: list[str] = []
    images: list[str] = []
    unreadable: dict[str, str] = {}
    root: str = ""


class CleanupResult(Record):
    """An item that a sweep ended, removed or left alone, and the reason; `run` is the run that it belongs to, if known.

    `receiver` is the program that the run has handed a process over to, e.g. `slurmstepd (pid 4242)`.
    """

    kind: str
    name: str
    run: str | None = None
    did: Literal["ended", "removed", "left"]
    why: str
    receiver: str | None = None

    @property
    def title(self) -> str:
        """A short name, with the last letters of the run's id."""
        of = f" of {self.run.rpartition('-')[2]}" if self.run and self.kind != "container" else ""
        return f"{self.name if self.name.startswith('pid') else f'{self.kind} {self.name}'}{of}"


class Sweep(Record):
    """The result of a sweep.

    `ended` gives the seconds since each requested run ended; `None` for a run that no longer exists.
    """

    items: list[CleanupResult]
    ended: dict[str, Annotated[float, Field(ge=-1e12, le=1e12)] | None] = {}
    root: str = ""
