"""The interface of a host client: a typed method for each request to a host.

For an SSH host, the implementation uses an agent (`agent_client.py`). The methods are grouped by subject:
`runs` for recorded runs, `preparation` for a run in preparation, `making` for environments and images,
`upkeep` for cleanup and garbage collection. Example: `connect(host).runs.summaries()`.

Every method raises AgentError if the agent refuses, ConnectionLostError if the connection ends or the
deadline passes, and MalformedAnswerError if the answer is not of the declared type.
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
        PreparedRun,
        ResumedRun,
        ResumeOptions,
        Sweep,
    )
    from launcher.values.reported.checkpoint import SealedCheckpoint
    from launcher.values.reported.engine_access import EngineAccess, RunLocation
    from launcher.values.reported.output import Loss, Manifest, Outputs
    from launcher.values.software.environment import EnvironmentBuilder
    from launcher.values.software.packages import KnownImage

Printed = Callable[[int, bytes], None]
"""Takes a part of a program's output: 1 for standard output or 2 for standard error, and the bytes."""


Heard = Callable[[int], None]
"""Takes the number of bytes that the host has read so far, while it reads a run's files."""


class RunList(Protocol):
    """The recorded runs of a host."""

    def summaries(
        self, *runs: str, like: str | None = None, states: Sequence[str] = (), most: int | None = None
    ) -> list[Summary]:
        """Return a summary of each of these runs, or of the host's newest `most` runs, newest first.

        `like` is the start of an id or of its last part. With `states`, only runs in one of them count.
        Malformed lines are left out.
        """

    def heard_before(self, *runs: str) -> list[Summary]:
        """Return the last known summaries of these runs.

        A backend without a connection to its runs records them locally; others return none.
        """

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None = None) -> AgentReply:
        """Return the news of a run since the cursors in `request`. Wait up to `wait_s` seconds for them."""

    def wish(self, run: str, wish: str, *, force: bool = False) -> str | None:
        """Ask a run to `stop` or `cancel`. The agent ends a run that no process holds.

        With `force`, an agent that does not answer is killed, with its training. Return the reason if the
        host's disk cannot record the request or the end: a key of DISK_WORDS, or other words; otherwise
        `None`. The run is stopped in any case.
        """

    def resume(self, run: str, by: str, secrets: Mapping[str, str] | None = None) -> ResumedRun:
        """Resume an interrupted or waiting run: end its leftovers, lease its cards and start its keeper.

        `by` names this client for others. `secrets` replace the secrets on the host. A container is not
        started; the answer then has a `place`.
        """

    def await_agent(self, run: str, wait_s: float) -> bool:
        """Wait for the agent of a run that was handed over. Return whether it has appeared."""

    def remaining(self, run: str) -> list[str]:
        """Return the remains of an ended run, a line for each process or lease."""

    def location(self, run: str) -> RunLocation:
        """Return the location of a run, and the user that runs it."""

    def entrance(self, run: str) -> list[str]:
        """Return the command of a program on the host that acts as an agent beside the run's processes.

        Raises AgentError `no-job` while its job does not run, and `silent` if its state is unknown.
        """

    def execute(
        self, run: str, command: Sequence[str], take: Printed, is_enough: Callable[[], bool]
    ) -> CommandEnd:
        """Run a command beside a run.

        `take` gets its output as it appears. End the command once it `is_enough`.
        """

    def interact(self, run: str, command: Sequence[str], take: Printed, keyboard: Keyboard) -> CommandEnd:
        """Run a command on a terminal beside a run, by default the user's shell. `keyboard` is its input."""

    def outputs(self, run: str, heard: Heard, *, every_file: bool = False) -> Outputs:
        """Return the files that a run wrote, without digests.

        With `every_file`, ignore the job's patterns.
        """

    def manifest(self, run: str, paths: Sequence[str], heard: Heard) -> Manifest:
        """Read files of a run and return their digests."""

    def checkpoint(self, run: str, which: str) -> SealedCheckpoint:
        """Return the `best`, the `last` or a numbered checkpoint of a run.

        Raises AgentError `no-checkpoint` if it does not exist.
        """

    def outlook(self, run: str) -> ResumeOptions:
        """Return whether a run can be moved, and where it has been moved to."""

    def move(self, run: str, target: MovedTo, instead: Sequence[str] = ()) -> MovedTo:
        """Record that an ended run continues elsewhere. Return the recorded target: an earlier move is kept.

        `instead` are successors that never began. A recorded one of them is replaced.
        """

    def tree(self, run: str) -> bytes:
        """Return the manifest of a run's code and data as they were sent, as JSON."""

    def contents(self, run: str, files: Sequence[str], take: Callable[[Incoming], None]) -> None:
        """Receive files of a run as they were sent to it, by their SHA-256, one after the other."""

    def send(self, run: str, files: Sequence[tuple[str, int, int]], take: Callable[[Incoming], None]) -> None:
        """Receive files of a run, one after the other, given as (path, first byte, total size).

        `take` reads them. Raises AgentError `changed` if a file is gone or has become shorter.
        """

    def remove(self, run: str, held: Mapping[str, str], lose: Loss, heard: Heard) -> Freed:
        """Remove an ended run, if nothing is lost except what `lose` allows.

        `held` maps the paths of the files with a safe local copy to their SHA-256. Raises AgentError
        `last-copies`, whose values are a LastCopies. With `all`, a run whose engine does not answer is
        stopped first.
        """


class Preparation(Protocol):
    """A run in preparation. Until it is started or handed over, it is removed when the connection ends."""

    def create(
        self,
        run: str,
        plan: Plan,
        runtime: str,
        engine: EngineAccess | None,
        gpus: Sequence[str] | None,
        count: int | None,
        any_of: Sequence[str] | None,
        *,
        queues: bool,
    ) -> PreparedRun:
        """Create a run's folder with its plan, and lease `count` of the cards `gpus` (UUIDs), or all of them.

        Without `gpus` the run's starter assigns its cards. The run may later move to any card of `any_of`.
        Raises AgentError `card-leased` if the cards are taken; a client that `queues` keeps its place in the
        line. Raises AgentError `run-exists` for an existing id, and `forgone` for an abandoned one.
        """

    def check_sources(self, plan: Plan) -> None:
        """Check that the paths on the host in a plan exist. Raises AgentError `no-source`."""

    def lacking(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the SHA-256 of the files of a tree that the host lacks. Create nothing on it."""

    def forgo(self, run: str) -> bool:
        """Prevent the host from creating a run of this id, and remove its incomplete parts.

        False if it has begun.
        """

    def offer(self, run: str, manifest: Mapping[str, Any]) -> list[str]:
        """Offer a tree.

        Return the SHA-256 of the files that the host lacks. If it lacks none, the tree is in place.
        """

    def ship(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> list[str]:
        """Send files (SHA-256), which `write` writes one after the other. Return the files still missing."""

    def offer_checkpoint(self, run: str, parent: str, checkpoint: SealedCheckpoint) -> list[str]:
        """Offer a prepared run the checkpoint of its parent on another host.

        Return the SHA-256 of the files to send.
        """

    def ship_checkpoint(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> None:
        """Send the missing files of the offered checkpoint. It is complete and in place when this returns."""

    def inherit(self, run: str, parent: str, requested_keys: Sequence[str]) -> Inheritance:
        """Give a run the code, the data and the newest checkpoint of a run on the same host.

        `requested_keys` are the keys of the job that the user changed.
        """

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Store the values of a run's secrets on the host, readable only by this user's processes."""

    def start(self, run: str) -> str | None:
        """Start a run's keeper on the host. Return when its agent has begun the first attempt.

        On a cluster, submit a job and return its id.
        """

    def hand_over(self, run: str) -> None:
        """Leave a run to the process that the client starts next.

        The end of the connection no longer removes it.
        """

    def take_back(self, run: str) -> bool:
        """Take back a run that could not begin. Return whether the end of the connection will remove it."""


class Making(Protocol):
    """The creation of environments and images on the host."""

    def hold(self, lock: str) -> HeldLock:
        """Take a named lock of the host, without waiting. The end of the connection releases it."""

    def let_go(self, lock: str) -> None:
        """Release a lock. An environment that was created under it and not sealed is removed."""

    def has_buildkit(self, engine: EngineAccess) -> bool:
        """Return whether the host can build images with BuildKit."""

    def build_image(
        self,
        engine: EngineAccess,
        tag: str,
        payload: bytes,
        take: Printed,
        *,
        labels: Mapping[str, str],
        network: str | None,
        arguments: Mapping[str, str],
    ) -> CommandEnd:
        """Build an image with BuildKit. `take` gets the builder's output."""

    def known_of(self, image: str) -> KnownImage:
        """Return the host's data about an image, by its id."""

    def record_packages(self, image: str, packages: bytes) -> None:
        """Record the packages of an image, as the JSON that its Python printed."""

    def has_environment(self, name: str) -> bool:
        """Return whether an environment exists and is complete."""

    def make_environment(
        self,
        name: str,
        maker: EnvironmentBuilder,
        payload: bytes,
        take: Printed,
        *,
        index: str | None,
        no_index: bool,
        unimported: str | None,
    ) -> MadeEnvironment:
        """Create an environment, whose lock this connection holds. `take` gets the output of pip or uv.

        `unimported` is the torch whose import is skipped in the check: its version, "" for any.
        """

    def seal_environment(self, name: str) -> None:
        """Put an environment that was created on this connection into use."""


class HostUpkeep(Protocol):
    """Cleanup and garbage collection."""

    def sweep(self, runs: Collection[str], *, dry_run: bool) -> Sweep:
        """End and remove the leftovers of ended runs. Also return how long ago each of `runs` ended."""

    def collect_garbage(self, heard: Heard, *, dry_run: bool) -> Garbage:
        """Remove what no run of the host refers to. `heard` gets the number of runs read so far."""

    def root_label(self) -> str:
        """Return the label of the resources of this host's root: the host's id and the root's path."""


class HostClient(Opener, Protocol):
    """A connection to a host that answers. Use it as a context manager."""

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def root_id(self) -> str:
        """The random id of the host's root. Empty if the host has none."""

    @property
    def runs(self) -> RunList:
        """The recorded runs of the host."""

    @property
    def preparation(self) -> Preparation:
        """Runs in preparation."""

    @property
    def making(self) -> Making:
        """Environments and images."""

    @property
    def upkeep(self) -> HostUpkeep:
        """Cleanup and garbage collection."""

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
        """Return the host's facts.

        `packages` are looked up in the job's interpreter, `model_keys` in its model's config. With `slurm`,
        the facts of its cluster are included.
        """

    def __enter__(self) -> Self:
        """Return the client itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
