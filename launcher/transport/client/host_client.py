"""The client of a host: a typed method for each request to its agent.

The methods are grouped by subject: `runs` for recorded runs, `preparation` for a run in preparation, `making`
for environments and images, `upkeep` for cleanup and garbage collection. Example:
`connect(host).runs.summaries()`. Only this module names the agent's verbs.

Every method raises AgentError if the agent refuses, ConnectionLostError if the connection ends or the
deadline passes, and MalformedAnswerError if the answer is not of the declared type.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from launcher.agent.record import strict_json
from launcher.base.json_file import well_formed
from launcher.base.text import is_obeyed, printable
from launcher.errors import BadFileError, MalformedAnswerError
from launcher.transport.agent_input import ONLY_LISTENING, Keyboard, typing, until
from launcher.transport.channel import HASHING_S, AgentReply, Calls, ForwardingOpener, Incoming
from launcher.transport.client.run_reading import Reader, SingleReader
from launcher.values.base import Record
from launcher.values.parsing import build
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
    RejectedCheckpoint,
    RemovedThing,
    ResumedRun,
    ResumeOptions,
    Sweep,
)
from launcher.values.reported.checkpoint import SealedCheckpoint, sealed_checkpoint
from launcher.values.reported.engine_access import EngineAccess, RunLocation
from launcher.values.reported.output import (
    CONTENT,
    MAX_FILES,
    OUTPUT,
    Content,
    Loss,
    Manifest,
    Outputs,
    RunOutput,
    checked,
)
from launcher.values.software.packages import KnownImage

if TYPE_CHECKING:
    from launcher.values.facts import Facts
    from launcher.values.plan import Plan
    from launcher.values.software.environment import EnvironmentBuilder

SHORT_S = 60.0
LISTING_S = 300.0
"""The seconds that a host may take to list its runs. The first time, it reads each run."""
SENDING_S = 600.0
DISK_S = 600.0
"""The seconds that a host may take to write, check or remove much data."""
SWEEP_S = 60.0
INHERIT_S = 3600.0
"""The seconds that a host may take to check a checkpoint, which it reads completely."""
MAX_LINE = 1 << 16
"""The maximum bytes of a line about a file or a run."""
MAX_LINES = 128 << 20
"""The maximum bytes of all lines of a list: 200,000 files with paths of 500 characters."""
MAX_SIGNS = 50
"""The maximum number of progress messages per second. As many more are allowed at the start.

An agent sends one per second.
"""
Printed = Callable[[int, bytes], None]
"""Takes a part of a program's output: 1 for standard output or 2 for standard error, and the bytes."""
Heard = Callable[[int], None]
"""Takes the number of bytes that the host has read so far, while it reads a run's files."""
Value = TypeVar("Value", bound=BaseModel)
Line = TypeVar("Line")

_READ = TypeAdapter(Annotated[int, Field(ge=0)], config=ConfigDict(defer_build=True))
"""A progress message: the number of bytes that the agent has read."""


class HostClient(ForwardingOpener):
    """A connection to a host's agent, which answers the requests. Use it as a context manager."""

    def __init__(self, channel: Calls, reader: Reader | None = None) -> None:
        """Use this channel, and close it at the end.

        `reader` reads runs, by default over the same channel.
        """
        super().__init__(channel)
        self._channel = channel
        self._reader = reader or SingleReader(channel)
        self.runs = RunList(channel, self._reader)
        self.preparation = Preparation(channel)
        self.making = Making(channel)
        self.upkeep = HostUpkeep(channel)

    @property
    def host(self) -> str:
        """The host's name."""
        return self._channel.host

    @property
    def root_id(self) -> str:
        """The random id of the host's root. Empty if the host has none."""
        return self._channel.root_id

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
        from launcher.values.facts import Facts  # most commands probe nothing

        reply = self._channel.call(
            "probe",
            env=environment,
            packages=packages,
            engine=engine,
            model=model,
            model_keys=list(model_keys),
            slurm=slurm,
        )
        return _typed(Facts, reply, self.host, f"{self.host}'s probe")


class _VerbGroup:
    """A group of verbs over one channel."""

    def __init__(self, channel: Calls) -> None:
        self._channel = channel

    def _ask(self, kind: type[Value], verb: str, payload: bytes = b"", **args: Any) -> Value:
        """Send a request and return its answer as a value of a type."""
        return self._as(kind, verb, self._channel.call(verb, payload, **args))

    def _as(self, kind: type[Value], verb: str, reply: AgentReply) -> Value:
        host = self._channel.host
        return _typed(kind, reply, host, f"{host}: the agent's answer to `{verb}` is malformed")

    def _lines(
        self,
        verb: str,
        take: Callable[[bytes], None],
        heard: Heard,
        payload: bytes = b"",
        *,
        wait_s: float = HASHING_S,
        total_s: float | None = None,
        **args: Any,
    ) -> AgentReply:
        """Send a request whose answer follows JSON lines. `take` gets each line.

        `wait_s` and `total_s` limit the time, as for a stream.
        """
        count = size = signs = 0
        began = time.monotonic()

        def read(stream: Incoming) -> None:
            nonlocal count, size, signs
            for line in _split(stream):
                try:
                    if line[:1].isdigit():
                        signs += 1
                        if signs > MAX_SIGNS * (1 + time.monotonic() - began):
                            raise self._malformed(verb, "it has too many progress messages")
                        heard(_READ.validate_json(line, strict=True))
                        continue
                    take(line)
                except ValidationError as error:
                    raise self._malformed(verb, str(error.errors()[0]["msg"])) from error
                count, size = count + 1, size + len(line)
                if count > MAX_FILES:
                    raise self._malformed(verb, f"it names more than {MAX_FILES:,} files")
                if size > MAX_LINES:
                    raise self._malformed(verb, "its names are too long")

        try:
            return self._channel.receive_stream(verb, read, payload, wait_s=wait_s, total_s=total_s, **args)
        except _LineTooLongError:
            raise self._malformed(verb, "a line does not end") from None

    def _malformed(self, verb: str, why: str) -> MalformedAnswerError:
        host = self._channel.host
        return MalformedAnswerError(
            host, printable(f"{host}: the agent's answer to `{verb}` is malformed: {why}")
        )


class RunList(_VerbGroup):
    """The recorded runs of a host."""

    def __init__(self, channel: Calls, reader: Reader) -> None:
        super().__init__(channel)
        self._reader = reader

    def summaries(
        self, *runs: str, like: str | None = None, states: Sequence[str] = (), most: int | None = None
    ) -> list[Summary]:
        """Return a summary of each of these runs, or of the host's newest `most` runs, newest first.

        `like` is the start of an id or of its last part. With `states`, only runs in one of them count.
        Malformed lines are left out.
        """
        found: list[Summary] = []

        def take(line: bytes) -> None:
            summary = _summary(line)
            if summary is not None:
                found.append(summary)

        self._lines(
            "runs",
            take,
            unheard,
            wait_s=SHORT_S,
            total_s=LISTING_S,
            runs=list(runs) or None,
            like=like,
            states=list(states) or None,
            most=most,
        )
        return found

    def heard_before(self, *runs: str) -> list[Summary]:
        """Return the last known summaries of these runs.

        A backend without a connection to its runs records them locally; others return none.
        """
        return []

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None = None) -> AgentReply:
        """Return the news of a run since the cursors in `request`. Wait up to `wait_s` seconds for them."""
        return self._reader.read(run, request, wait_s)

    def wish(self, run: str, wish: str, *, force: bool = False) -> str | None:
        """Ask a run to `stop` or `cancel`. The agent ends a run that no process holds.

        With `force`, an agent that does not answer is killed, with its training. Return the reason if the
        host's disk cannot record the request or the end: a key of DISK_WORDS, or other words; otherwise
        `None`. The run is stopped in any case.
        """
        return self._ask(_Wished, "wish", run=run, wish=wish, force=force, deadline_s=SHORT_S).refused

    def resume(self, run: str, by: str, secrets: Mapping[str, str] | None = None) -> ResumedRun:
        """Resume an interrupted or waiting run: end its leftovers, lease its cards and start its keeper.

        `by` is this client's name for other clients. `secrets` replace the secrets on the host. A container is not
        started; the answer then has a `place`.
        """
        payload = b"" if secrets is None else json.dumps(secrets).encode()
        return self._ask(ResumedRun, "resume", payload, run=run, by=by, deadline_s=SHORT_S)

    def await_agent(self, run: str, wait_s: float) -> bool:
        """Wait for the agent of a run that was handed over. Return whether it has appeared."""
        return self._ask(_Awaited, "await", run=run, wait_s=wait_s).came

    def remaining(self, run: str) -> list[str]:
        """Return the remains of an ended run, a line for each process or lease."""
        return self._ask(_Remains, "remains", run=run, deadline_s=SHORT_S).left

    def location(self, run: str) -> RunLocation:
        """Return the location of a run, and the user that runs it."""
        return self._ask(_Located, "place", run=run).place

    def entrance(self, run: str) -> list[str]:
        """Return the command on the host that starts an agent beside the run's processes, e.g. on another node.

        Raises AgentError `no-job` while its job does not run, and `silent` if its state is unknown.
        """
        return self._ask(_Entrance, "entrance", run=run, deadline_s=SHORT_S).words

    def execute(
        self, run: str, command: Sequence[str], take: Printed, is_enough: Callable[[], bool]
    ) -> CommandEnd:
        """Run a command beside a run.

        `take` gets its output as it appears. End the command once `is_enough` returns true.
        """
        reply = self._channel.execute("exec", b"", take, until(is_enough), run=run, command=list(command))
        return self._as(CommandEnd, "exec", reply)

    def interact(self, run: str, command: Sequence[str], take: Printed, keyboard: Keyboard) -> CommandEnd:
        """Run a command on a terminal beside a run, by default the user's shell. `keyboard` is its input."""
        window = keyboard.window()
        screen = {"kind": keyboard.kind, **window._asdict()}
        typed = typing(keyboard, window)
        reply = self._channel.execute("interact", b"", take, typed, run=run, command=list(command), **screen)
        return self._as(CommandEnd, "interact", reply)

    def outputs(self, run: str, heard: Heard, *, every_file: bool = False) -> Outputs:
        """Return the files that a run wrote, without digests.

        With `every_file`, ignore the job's patterns.
        """
        files: list[RunOutput] = []
        reply = self._lines("outputs", _each(OUTPUT, files.append), heard, run=run, all=every_file)
        end = self._as(_OutputsEnd, "outputs", reply)
        listed = self._checked("outputs", files)
        refused = {file.path: UNSAFE_NAME for file in listed if is_obeyed(file.path)}
        if refused:
            listed = [file for file in listed if file.path not in refused]
        return Outputs(listed, end.left_out | refused, end.now_ns)

    def manifest(self, run: str, paths: Sequence[str], heard: Heard) -> Manifest:
        """Read files of a run and return their digests."""
        files: list[Content] = []
        payload = json.dumps(list(paths)).encode()
        reply = self._lines("manifest", _each(CONTENT, files.append), heard, payload, run=run)
        requested = set(paths)
        strays = [file.path for file in files if file.path not in requested]
        if strays or len({file.path for file in files}) != len(files):
            raise self._malformed(
                "manifest", f"it names {strays[:1] or 'a file twice'}, which was not asked for"
            )
        return Manifest(files, self._as(_ManifestEnd, "manifest", reply).left_out)

    def checkpoint(self, run: str, which: str) -> SealedCheckpoint:
        """Return the `best`, the `last` or a numbered checkpoint of a run.

        Raises AgentError `no-checkpoint` if it does not exist.
        """
        reply = self._channel.call("checkpoint", deadline_s=DISK_S, run=run, which=which)
        sealed = self._as(_Sealed, "checkpoint", reply)
        if hashlib.sha256(reply.payload).hexdigest() != sealed.sha256:
            raise self._malformed("checkpoint", "its manifest does not match the announced digest")
        try:
            return sealed_checkpoint(
                sealed.name, reply.payload, sealed.sha256, sealed.changed_ns, sealed.passed_over
            )
        except ValueError as error:
            raise self._malformed("checkpoint", str(error).splitlines()[0]) from error

    def outlook(self, run: str) -> ResumeOptions:
        """Return whether a run can be moved, and where it has been moved to."""
        return self._ask(ResumeOptions, "outlook", run=run)

    def move(self, run: str, target: MovedTo, instead: Sequence[str] = ()) -> MovedTo:
        """Record that an ended run continues elsewhere. Return the recorded target: an earlier move is kept.

        `instead` are successors that never began. If one of them is the recorded target, it is replaced.
        """
        return self._ask(
            _Moved,
            "move",
            run=run,
            to=target.run,
            host=target.host,
            root=target.root,
            instead=list(instead),
            deadline_s=SHORT_S,
        ).moved

    def tree(self, run: str) -> bytes:
        """Return the manifest of a run's code and data as they were sent, as JSON."""
        return self._channel.call("tree", deadline_s=DISK_S, run=run).payload

    def contents(self, run: str, files: Sequence[str], take: Callable[[Incoming], None]) -> None:
        """Receive files of a run as they were sent to it, by their SHA-256, one after the other."""
        self._channel.receive_stream("contents", take, total_s=SENDING_S, run=run, files=list(files))

    def send(self, run: str, files: Sequence[tuple[str, int, int]], take: Callable[[Incoming], None]) -> None:
        """Receive files of a run, one after the other, given as (path, first byte, total size).

        `take` reads them. Raises AgentError `changed` if a file is gone or has become shorter.
        """
        payload = json.dumps(files).encode()
        self._channel.receive_stream("send", take, payload, total_s=SENDING_S, run=run)

    def remove(self, run: str, held: Mapping[str, str], lose: Loss, heard: Heard) -> Freed:
        """Remove an ended run, if no files are lost except those that `lose` allows.

        `held` maps the paths of the files with a safe local copy to their SHA-256. Raises AgentError
        `last-copies`, whose values are a LastCopies. With `all`, a run whose engine does not answer is
        stopped first.
        """
        payload = json.dumps(dict(held)).encode()
        nothing: list[Content] = []
        take = _each(CONTENT, nothing.append)
        reply = self._lines("remove", take, heard, payload, run=run, lose=lose)
        return self._as(Freed, "remove", reply)

    def _checked(self, verb: str, files: list[RunOutput]) -> list[RunOutput]:
        try:
            return checked(files)
        except ValueError as error:
            raise self._malformed(verb, str(error)) from error


def _split(stream: Incoming) -> Iterator[bytes]:
    """Yield the lines of a stream."""
    rest = b""
    while piece := stream.read_some():
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE:
            raise _LineTooLongError
    if rest:
        raise _LineTooLongError


UNSAFE_NAME = "its name has control characters; rename it there"
"""The reason for leaving out a run's file. A terminal that shows the name would execute its control characters."""


class _LineTooLongError(Exception):
    """Raised for a line without an end."""


class Preparation(_VerbGroup):
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
        return self._ask(
            PreparedRun,
            "create",
            plan.to_file(),
            run=run,
            runtime=runtime,
            engine=engine.model_dump() if engine is not None else None,
            env=plan.host_environment,
            gpus=None if gpus is None else list(gpus),
            cards=count,
            any_of=None if any_of is None else list(any_of),
            queues=queues,
        )

    def check_sources(self, plan: Plan) -> None:
        """Check that the paths on the host in a plan exist. Raises AgentError `no-source`."""
        self._channel.call("sources", plan.to_file())

    def lacking(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the SHA-256 of the files of a tree that the host lacks. Create nothing on the host."""
        return self._ask(_Missing, "lacking", json.dumps(manifest).encode(), deadline_s=DISK_S).missing

    def forgo(self, run: str) -> bool:
        """Prevent the host from creating a run of this id, and remove its incomplete parts.

        False if it has begun.
        """
        return not self._ask(_Forgone, "forgo", run=run, deadline_s=DISK_S).begun

    def offer(self, run: str, manifest: Mapping[str, Any]) -> list[str]:
        """Offer a tree.

        Return the SHA-256 of the files that the host lacks. If it lacks none, the tree is in place.
        """
        return self._ask(
            _Missing,
            "offer",
            json.dumps(manifest, separators=(",", ":")).encode(),
            run=run,
            deadline_s=DISK_S,
        ).missing

    def ship(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> list[str]:
        """Send files (SHA-256), which `write` writes one after the other. Return the files still missing."""
        reply = self._channel.send_stream("ship", b"", write, run=run, files=list(files))
        return self._as(_Missing, "ship", reply).missing

    def offer_checkpoint(self, run: str, parent: str, checkpoint: SealedCheckpoint) -> list[str]:
        """Offer a prepared run the checkpoint of its parent on another host.

        Return the SHA-256 of the files to send.
        """
        return self._ask(
            _Missing,
            "offer_checkpoint",
            checkpoint.manifest,
            run=run,
            parent=parent,
            name=checkpoint.name,
            deadline_s=DISK_S,
        ).missing

    def ship_checkpoint(self, run: str, files: Sequence[str], write: Callable[[IO[bytes]], None]) -> None:
        """Send the missing files of the offered checkpoint. It is complete and in place when this returns."""
        self._channel.send_stream("ship_checkpoint", b"", write, run=run, files=list(files))

    def inherit(self, run: str, parent: str, requested_keys: Sequence[str]) -> Inheritance:
        """Give a run the code, the data and the newest checkpoint of a run on the same host.

        `requested_keys` are the keys of the job that the user changed.
        """
        return self._ask(
            Inheritance, "inherit", run=run, parent=parent, asked=list(requested_keys), deadline_s=INHERIT_S
        )

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Store the values of a run's secrets on the host, readable only by this user's processes."""
        self._channel.call("secrets", json.dumps(secrets).encode(), run=run)

    def start(self, run: str) -> str | None:
        """Start a run's keeper on the host. Return when its agent has begun the first attempt.

        On a cluster, submit a job and return its id.
        """
        return self._ask(_Begun, "start", run=run, deadline_s=SHORT_S).job_id

    def hand_over(self, run: str) -> None:
        """Leave a run to the process that the client starts next.

        The end of the connection no longer removes it.
        """
        self._channel.call("hand_over", run=run)

    def take_back(self, run: str) -> bool:
        """Take back a run that could not begin. Return whether the end of the connection will remove it."""
        return self._ask(_TakenBack, "take_back", run=run).taken


class Making(_VerbGroup):
    """The creation of environments and images on the host."""

    def hold(self, lock: str) -> HeldLock:
        """Take a named lock of the host, without waiting. The end of the connection releases it."""
        return self._ask(HeldLock, "hold", name=lock)

    def let_go(self, lock: str) -> None:
        """Release a lock. An environment that was created under it and not sealed is removed."""
        self._channel.call("hold", name=lock, release=True, deadline_s=DISK_S)

    def has_buildkit(self, engine: EngineAccess) -> bool:
        """Return whether the host can build images with BuildKit."""
        return self._ask(_Builder, "builder", engine=engine.model_dump(), deadline_s=SHORT_S).buildkit

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
        reply = self._channel.execute(
            "build",
            payload,
            take,
            ONLY_LISTENING,
            engine=engine.model_dump(),
            tag=tag,
            labels=dict(labels),
            network=network,
            arguments=dict(arguments),
        )
        return self._as(CommandEnd, "build", reply)

    def known_of(self, image: str) -> KnownImage:
        """Return the host's data about an image, by its id."""
        return self._ask(KnownImage, "packages", image=image)

    def record_packages(self, image: str, packages: bytes) -> None:
        """Record the packages of an image, as the JSON that its Python printed."""
        self._channel.call("packages", packages, image=image)

    def has_environment(self, name: str) -> bool:
        """Return whether an environment exists and is complete."""
        return self._ask(_Environment, "environment", name=name, deadline_s=DISK_S).there

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
        reply = self._channel.execute(
            "make_environment",
            payload,
            take,
            ONLY_LISTENING,
            name=name,
            maker=maker._asdict(),
            index=index,
            no_index=no_index,
            unimported=unimported,
        )
        return self._as(MadeEnvironment, "make_environment", reply)

    def seal_environment(self, name: str) -> None:
        """Put an environment that was created on this connection into use."""
        self._channel.call("seal_environment", name=name, deadline_s=DISK_S)


class HostUpkeep(_VerbGroup):
    """Cleanup and garbage collection."""

    def sweep(self, runs: Collection[str], *, dry_run: bool) -> Sweep:
        """End and remove the leftovers of ended runs. Also return how long ago each of `runs` ended."""
        return self._ask(Sweep, "sweep", dry_run=dry_run, runs=sorted(runs), deadline_s=SWEEP_S)

    def collect_garbage(self, heard: Heard, *, dry_run: bool) -> Garbage:
        """Remove what no run of the host refers to. `heard` gets the number of runs read so far."""
        items: list[RemovedThing] = []

        def take(line: bytes) -> None:
            items.append(RemovedThing.model_validate_json(line, strict=True))

        reply = self._lines("gc", take, heard, wait_s=DISK_S, dry_run=dry_run)
        return self._as(Garbage, "gc", reply).model_copy(update={"items": items})

    def root_label(self) -> str:
        """Return the label of the resources of this host's root: the host's id and the root's path."""
        return self._ask(_Root, "root").root


class _OutputsEnd(Record):
    left_out: dict[str, str] = {}
    now_ns: int


class _Sealed(Record):
    name: str
    sha256: str
    changed_ns: dict[str, int] = {}
    passed_over: list[RejectedCheckpoint] = []


class _Forgone(Record):
    begun: bool


class _Moved(Record):
    moved: MovedTo


class _ManifestEnd(Record):
    left_out: dict[str, str] = {}


class _Wished(Record):
    refused: str | None = None


class _Awaited(Record):
    came: bool


class _Remains(Record):
    left: list[str]


class _Entrance(Record):
    """The answer to `entrance`."""

    words: list[str]


class _Located(Record):
    place: RunLocation


class _Missing(Record):
    missing: list[str] = []


class _Begun(Record):
    job_id: str | None = None


class _TakenBack(Record):
    taken: bool


class _Builder(Record):
    buildkit: bool


class _Environment(Record):
    there: bool


class _Root(Record):
    root: str


def unheard(_count: int) -> None:
    """Ignore the progress of a host."""


def _each(kind: TypeAdapter[Line], take: Callable[[Line], None]) -> Callable[[bytes], None]:
    """Return a function that parses a line as a value of a type and passes it to `take`."""
    return lambda line: take(kind.validate_json(line, strict=True))


def _summary(line: bytes) -> Summary | None:
    """Return a summary from a line, without its malformed fields. `None` if the rest is not a summary."""
    with contextlib.suppress(ValidationError):
        return Summary.model_validate_json(line, strict=True)
    with contextlib.suppress(ValueError, RecursionError):
        return Summary.lenient(well_formed(strict_json.decode(line), line))
    return None


def _typed(kind: type[Value], reply: AgentReply, host: str, what: str) -> Value:
    """Return a reply's values as a value of a type.

    Only this function raises MalformedAnswerError for values.
    """
    try:
        return build(kind, reply.values, file=what)
    except (BadFileError, RecursionError) as error:
        raise MalformedAnswerError(host, printable(str(error))) from error
