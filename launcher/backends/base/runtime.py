"""A runtime handles a run's whole life on a host: create, provide, start, resume, stop, inside, remove.

By default, `Runtime` has the agent on the host do all of this for a plain process. A subclass overrides the
steps that differ. Its counterpart on the host is a module of the same name in `agent/liveness/`, which checks
whether a run is alive. Example: `docker` starts a container instead of a keeper process.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from launcher.values.record import RuntimeRecord
from launcher.values.software.image import BuildOptions

if TYPE_CHECKING:
    from launcher.errors import AgentError
    from launcher.transport.channel import Socket
    from launcher.transport.client.host_client import HostClient
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.reported.answers import ResumedRun

Say = Callable[[str], None]
"""Shows the progress of a slow step."""


class ResumeInputs(NamedTuple):
    """Inputs for resuming a run. The functions read files or contact the host: call them only if needed."""

    attempt: int
    """The number of the next attempt."""
    plan: Callable[[], Plan]
    build: Callable[[], BuildOptions]
    secrets: Callable[[Sequence[str]], Mapping[str, str]]
    """Returns the values of secrets that the host lacks, by the given names.

    Raises UsageError or RefusedError.
    """
    say: Say
    """Shows the progress of building an image."""
    wait: Say
    """Shows the reason for waiting."""
    by: str
    """The name of this client, shown to others."""


class RunResource(NamedTuple):
    """An object that a runtime keeps for one run, e.g. its container. `root` is the label of the run's root."""

    kind: str
    name: str
    id: str
    run: str
    root: str
    is_up: bool


class UnknownResource(NamedTuple):
    """An object in the host's account that may be launcher's, and that no run here knows.

    `created` is in seconds since 1970, if known; `removal` is the command that removes it.
    """

    kind: str
    name: str
    created: float | None
    removal: str


class SharedResource(NamedTuple):
    """An object that a runtime keeps for many runs, e.g. an image.

    `created` is in seconds since 1970, `users` the number of runs' objects that use it. An object that an
    interrupted build left has no name, but an `id` and the name of the `lock` that the build held.
    """

    kind: str
    name: str
    bytes: int
    created: float
    users: int
    id: str = ""
    lock: str = ""


class Runtime(ABC):
    """Runs the jobs of one host. Use it in a `with`.

    `client` is the host's client; closing the runtime leaves it open. `record` describes how runs are kept on
    the host and is recorded with each run. `build` has the options for building images and environments.
    `facts` are the host's, or `None` for a recorded run.
    """

    name: ClassVar[str]
    """The name of its module."""
    has_images: ClassVar[bool] = False
    """Whether a plan for this runtime has an image."""
    has_own_loopback: ClassVar[bool] = False
    """Whether a run's loopback ports are separate from its host's."""
    has_sessions: ClassVar[bool] = False
    """Whether a service ends a session at a time limit, so that a client must continue the run in another."""
    makes_environments: ClassVar[bool] = False
    """Whether a plan for this runtime may have an environment that is built on the host."""

    def __init__(
        self,
        client: HostClient,
        record: RuntimeRecord,
        build: BuildOptions | None = None,
        facts: Facts | None = None,
    ) -> None:
        """Store the arguments. Connections open on first use."""
        self.client = client
        self.record = record
        self.build = build or BuildOptions()
        self.facts = facts

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return the record of this runtime on a host; `None` if the host does not support it."""
        return RuntimeRecord(kind=cls.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most runtimes hold nothing
        """Release the runtime's resources. The client stays open."""

    # a new run

    def create(
        self,
        run: str,
        plan: Plan,
        gpus: Sequence[str],
        count: int | None = None,
        *,
        any_of: Sequence[str] = (),
        queues: bool = False,
    ) -> tuple[str, ...]:
        """Make the run's folder on the host and lease `count` of the cards `gpus` (UUIDs), or all of them.

        Return the leased cards. The run may move to any card of `any_of` later. Raises AgentError
        `card-leased` if the cards are taken; nothing is made then. A caller with `queues` that repeats the
        call keeps its place in the queue.
        """
        made = self.client.preparation.create(
            run,
            plan,
            self.record.kind,
            self.record.engine,
            gpus,
            count,
            any_of or gpus,
            queues=queues,
        )
        return made.gpus or ()

    def needs(self, plan: Plan) -> str | None:
        """Return the kind of object that `provide` provides, e.g. `image`; `None` if a plan needs none."""
        return None

    def provide(self, plan: Plan, say: Say) -> str:
        """Provide the run's image or environment on the host. Return its name and source."""
        return "nothing is needed"

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Put the values of a run's secrets on the host, readable only by this user's processes."""
        self.client.preparation.entrust(run, secrets)

    @abstractmethod
    def start(self, run: str) -> str | None:
        """Start a created run. Return once its agent has begun the first attempt.

        The result is the id of the run's job on a cluster, else None. `client.preparation.start` has the
        agent start the run's keeper. A runtime that starts the run itself first calls
        `client.preparation.hand_over`, and waits with `client.runs.await_agent`.
        """

    def start_words(self, job_id: str | None) -> str:
        """Return the status of a run after `start`, in words; `job_id` is the result of `start`."""
        return "attempt 1"

    def after_refusal(self, error: AgentError) -> str | None:
        """Return the command to type if the host's scheduler refused the run; None for another error of `start`."""
        return None

    def is_limit(self, error: AgentError) -> bool:
        """Whether an error of `start` is a limit of the host's scheduler that passes as other jobs end."""
        return False

    # a recorded run

    def resume(self, run: str, needs: ResumeInputs) -> ResumedRun:
        """Resume a run that was interrupted or waits. Return the result."""
        return self.ask_to_resume(run, needs)

    def ask_to_resume(self, run: str, needs: ResumeInputs) -> ResumedRun:
        """Have the agent resume a run.

        Wait if the only proof of the last agent's death is that it stays silent. Secrets are sent only if the
        host has lost them.
        """
        secrets = None
        while True:
            resumed = self.client.runs.resume(run, needs.by, secrets)
            if resumed.silence_left_s is not None:
                needs.wait(f"for a sign of life from another machine, {resumed.silence_left_s:.0f} s more")
                time.sleep(1.0)
            elif resumed.secrets and secrets is None:
                secrets = needs.secrets(resumed.secrets)
            else:
                return resumed

    def stop(self, run: str, grace_s: float) -> bool:
        """End a run whose agent was already asked to stop, after at most `grace_s` seconds.

        Return whether to ask the agent again, because it may have been killed before it recorded an end.
        """
        return False

    @contextlib.contextmanager
    def inside(self, run: str) -> Iterator[HostClient]:
        """Yield a client whose commands run in the environment of the run's processes."""
        yield self.client

    def open_port(self, run: str, port: int) -> Socket:
        """Open a stream to a TCP port of the run's loopback.

        Raises PortClosedError; RefusedStreamError if the host forbids it, or another HostError.
        """
        return self.client.open_port(port)

    def remove(self, run: str) -> str | None:
        """Remove the objects that the runtime keeps for an ended run.

        If some are left, return a message with the next step, else None.
        """
        return None

    # all objects of the runtime on the host

    def holdings(self) -> list[RunResource]:
        """Return the objects that the runtime keeps for runs, including those of other roots."""
        return []

    def supplies(self, root: str | None = None) -> list[SharedResource]:
        """Return the objects that launch made for many runs: all of them, or those of a root (by its label)."""
        return []

    def unknown(self) -> list[UnknownResource]:
        """Return the objects that look like launcher's, but belong to no run here. They are never removed."""
        return []

    def discard(self, thing: RunResource | SharedResource) -> bool:
        """Remove a shared object, or end and remove a run's object. Return whether it is gone."""
        raise NotImplementedError(f"{self.name} keeps nothing: {thing}")
