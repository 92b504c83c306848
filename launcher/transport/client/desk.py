"""A desk is what the client talks to: a typed method for each thing that can be asked of a host.

An SSH host has an agent behind its desk (`agent_desk.py`). The methods are grouped by what they concern:
`desk.runs` for recorded runs, `desk.preparation` for a run that is being prepared, `desk.making` for environments
and images, `desk.upkeep` for sweeping and garbage. Example: `connect(host).runs.summaries()`.

Every method raises AgentError if the agent refuses, ConnectionLostError if the connection ends or the deadline passes,
and MalformedAnswerError if the answer is not of the declared type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from launcher.transport.channel import Opener

if TYPE_CHECKING:
    from launcher.transport.agent_input import Keyboard
    from launcher.transport.channel import AgentReply, Incoming
    from launcher.values.facts import Facts
    from launcher.values.plan import Plan
    from launcher.values.record import Summary
    from launcher.values.reported.answers import (
        CommandEnd,
        Freed,
        Garbage,
        HeldLock,
        Inheritance,
        MadeEnvironment,
        MovedTo,
        Outlook,
        PreparedRun,
        ResumedRun,
        Sweep,
    )
    from launcher.values.reported.checkpoint import SealedCheckpoint
    from launcher.values.reported.engine_access import EngineWay, RunLocation
    from launcher.values.reported.output import Loss, Manifest, Outputs
    from launcher.values.software.environment import Maker
    from launcher.values.software.packages import KnownImage

Printed = Callable[[int, bytes], None]
"""Takes a piece of a program's output: 1 for standard output or 2 for standard error, and the bytes."""


Heard = Callable[[int], None]
"""Gets the number of bytes that the host has read so far, while it reads what a run wrote."""


class RunList(Protocol):
    """The runs that a host has on record."""

    def summaries(
        self, *runs: str, like: str | None = None, states: Sequence[str] = (), most: int | None = None
    ) -> list[Summary]:
        """Return a line about each of these runs, or about the runs of the host, the newest `most` first.

        `like` is the start of an id or of its last part; only runs in one of the `states` count. Malformed lines are left out.
        """

    def heard_before(self, *runs: str) -> list[Summary]:
        """Return what was last heard of these runs, of those that a place without a wire keeps on record here."""

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None = None) -> AgentReply:
        """Return what is new of a run since the cursors in `request`, waiting up to `wait_s` seconds for news."""

    def wish(self, run: str, wish: str, *, force: bool = False) -> str | None:
        """Ask a run to `stop` or `cancel`. A run that nobody holds is ended by the agent.

        With `force`, an agent that does not answer is killed, with its training. Return why the host's disk refuses to
        record the wish or the end: a key of DISK_WORDS, or other words; `None` if it does not. The run is stopped all
        the same.
        """

    def resume(self, run: str, by: str, secrets: Mapping[str, str] | None = None) -> ResumedRun:
        """Resume an interrupted or waiting run: end its leftovers, lease its cards again and start its keeper.

        `by` names this client for others. `secrets` replace those that the host has. A container is not started; the answer
        has a `place` then.
        """

    def await_agent(self, run: str, wait_s: float) -> bool:
        """Wait for the agent of a run that was handed over; return whether it has appeared."""

    def remaining(self, run: str) -> list[str]:
        """Return what is still there of a run that has ended, a line for each process or lease."""

    def location(self, run: str) -> RunLocation:
        """Return where a run lies, and as which user it runs."""

    def entrance(self, run: str) -> list[str]:
        """Return the words of a program of the host that is an agent where a run's processes are.

        Raises AgentError `no-job` while its job does not run, `silent` if nobody can say.
        """

    def execute(
        self, run: str, command: Sequence[str], take: Printed, is_enough: Callable[[], bool]
    ) -> CommandEnd:
        """Run a command beside a run; `take` gets its output as it appears. Once `is_enough`, the command is ended."""

    def interact(self, run: str, command: Sequence[str], take: Printed, keyboard: Keyboard) -> CommandEnd:
        """Run a command, by default the user's shell, on a terminal beside a run; it gets what is typed at `keyboard`."""

    def outputs(self, run: str, heard: Heard, *, every_file: bool = False) -> Outputs:
        """Return what a run wrote, without digests. `every_file`: the patterns of its job do not count."""

    def manifest(self, run: str, paths: Sequence[str], heard: Heard) -> Manifest:
        """Read files of a run and return their digests."""

    def checkpoint(self, run: str, which: str) -> SealedCheckpoint:
        """Return the `best`, the `last` or a numbered checkpoint of a run. Raises AgentError `no-checkpoint` without it."""

    def outlook(self, run: str) -> Outlook:
        """Return whether a run can be moved, and where it has been moved to."""

    def move(self, run: str, target: MovedTo, instead: Sequence[str] = ()) -> MovedTo:
        """Record that a run, which has ended, goes on elsewhere; return what is on record: an earlier move stands.

        `instead` are successors that never began: one of them on record gives way.
        """

    def tree(self, run: str) -> bytes:
        """Return the manifest of a run's code and data as they were sent, as JSON."""

    def contents(self, run: str, files: Sequence[str], take: Callable[[Incoming], None]) -> None:
        """Send files of a run as they were sent to it, by their SHA-256, one after the other."""

    def send(self, run: str, files: Sequence[tuple[str, int, int]], take: Callable[[Incoming], None]) -> None:
        """Send files of a run one after the other, given as (path, first byte, size of the whole); `take` reads them.

        Raises AgentError `changed` if a file is gone or has become shorter.
        """

    def remove(self, run: str, held: Mapping[str, str], lose: Loss, heard: Heard) -> Freed:
        """Remove a run that has ended, if nothing is lost but what `lose` names.

        `held` are the SHA-256 of the files that are safe here, by their paths. Raises AgentError `last-copies`, whose values
        are a LastCopies. With `all`, a run whose engine does not answer is stopped first.
        """


class Preparation(Protocol):
    """A run that is being prepared. Until it is started or handed over, it is removed when the connection ends."""

    def create(
        self,
        run: str,
        plan: Plan,
        runtime: str,
        engine: EngineWay | None,
        gpus: Sequence[str] | None,
        count: int | None,
        any_of: Sequence[str] | None,
        *,
        queues: bool,
    ) -> PreparedRun:
        """Make a run's folder with its plan, and lease `count` of the cards `gpus` (UUIDs), or all of them.

        Without `gpus` whoever starts it gives it its cards. The run may move to any card of `any_of` later. Raises AgentError `card-leased` if the cards are taken; a client
        that `queues` keeps its place in the line. Raises AgentError `run-exists` for an id that is taken,
        `forgone` for one that was given up.
        """

    def check_sources(self, plan: Plan) -> None:
        """Have the host look for what a plan names on it by path. Raises AgentError `no-source`."""

    def lacking(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the SHA-256 of the files of a tree that the host would have to be sent. Nothing is made there."""

    def forgo(self, run: str) -> bool:
        """Have the host never make a run of this id, and remove what is half-made of it; return False if it has begun."""

    def offer(self, run: str, manifest: Mapping[str, Any]) -> list[str]:
        """Offer a tree; return the SHA-256 of the files that the host lacks. If it lacks none, the tree is in place."""

    def ship(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> list[str]:
        """Send files (SHA-256), which `write` writes one after the other; return those that are still missing."""

    def offer_checkpoint(self, run: str, parent: str, checkpoint: SealedCheckpoint) -> list[str]:
        """Offer a prepared run the checkpoint of its parent on another host; return the SHA-256 of the files to send."""

    def ship_checkpoint(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> None:
        """Send the missing files of the checkpoint that was offered; it is in place, whole, when this returns."""

    def inherit(self, run: str, parent: str, requested_keys: Sequence[str]) -> Inheritance:
        """Give a run the code, the data and the newest checkpoint of a run on the same host.

        `requested_keys` are the keys of the job that the user changed.
        """

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Put the values of a run's secrets on the host, readable by this user's processes only."""

    def start(self, run: str) -> str | None:
        """Start a run's keeper on the host; return when its agent has begun the first attempt.

        On a cluster a job is submitted instead, whose id is returned.
        """

    def hand_over(self, run: str) -> None:
        """Leave a run to what the client starts next: it is not removed with the connection any more."""

    def take_back(self, run: str) -> bool:
        """Take back a run that could not begin; return whether it will be removed with the connection."""


class Making(Protocol):
    """Environments and images that are made on the host."""

    def hold(self, lock: str) -> HeldLock:
        """Take a lock of the host by name, without waiting. It is released with the connection."""

    def let_go(self, lock: str) -> None:
        """Release a lock. An environment that was made under it and not sealed is removed."""

    def has_buildkit(self, engine: EngineWay) -> bool:
        """Return whether the host can build images with BuildKit."""

    def build_image(
        self,
        engine: EngineWay,
        tag: str,
        payload: bytes,
        take: Printed,
        *,
        labels: Mapping[str, str],
        network: str | None,
        arguments: Mapping[str, str],
    ) -> CommandEnd:
        """Build an image with BuildKit; `take` gets what the builder prints."""

    def known_of(self, image: str) -> KnownImage:
        """Return what the host knows of an image, by its id."""

    def record_packages(self, image: str, packages: bytes) -> None:
        """Put the packages of an image on record, as the JSON that its Python printed."""

    def has_environment(self, name: str) -> bool:
        """Return whether an environment is there and whole."""

    def make_environment(
        self,
        name: str,
        maker: Maker,
        payload: bytes,
        take: Printed,
        *,
        index: str | None,
        no_index: bool,
        unimported: str | None,
    ) -> MadeEnvironment:
        """Make an environment, whose lock this connection holds; `take` gets what pip or uv prints.

        `unimported` is the torch that need not be imported to check it: its version, "" for any.
        """

    def seal_environment(self, name: str) -> None:
        """Put an environment that was made on this connection into use."""


class HostUpkeep(Protocol):
    """Sweeping and garbage collection."""

    def sweep(self, runs: Collection[str], *, dry_run: bool) -> Sweep:
        """End and remove what ended runs have left; also return how long ago each of `runs` ended."""

    def collect_garbage(self, heard: Heard, *, dry_run: bool) -> Garbage:
        """Remove what no run of the host names; `heard` gets the number of runs that were read so far."""

    def root_label(self) -> str:
        """Return the label of what belongs to this host's root: the host's id and the root's path."""


class HostClient(Opener, Protocol):
    """A host that answers. Use it in a `with`."""

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def root_id(self) -> str:
        """The random id of the host's root; empty if the host gives none."""

    @property
    def runs(self) -> RunList:
        """The runs that the host has on record."""

    @property
    def preparation(self) -> Preparation:
        """Runs that are being prepared."""

    @property
    def making(self) -> Making:
        """Environments and images."""

    @property
    def upkeep(self) -> HostUpkeep:
        """Sweeping and garbage collection."""

    def probe(
        self,
        *,
        environment: str | None = None,
        packages: Sequence[str] | None = None,
        engine: str | None = None,
        model: Mapping[str, str] | None = None,
        model_keys: Sequence[str] = (),
        slurm: bool = False,
    ) -> Facts:
        """Return the host's facts. `packages` are looked for in the job's interpreter, `model_keys` in its model's config, its cluster with `slurm`."""

    def __enter__(self) -> Self:
        """Return the desk itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
