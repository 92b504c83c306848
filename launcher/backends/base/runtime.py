"""A runtime carries a run through its whole life on a host: create, provide, start, resume, stop, inside, remove.

The agent on the host can do all of this for a plain process, and that is what `Runtime` does by default. A subclass
overrides what it does differently. Its counterpart on the host is a module of the same name in `agent/liveness/`, which
tells from there whether a run is alive. Example: `docker` starts a container instead of a keeper process.
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
    from launcher.transport.client.desk import HostClient
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.reported.answers import ResumedRun

Say = Callable[[str], None]
"""Shows the progress of something that takes long."""


class Resumption(NamedTuple):
    """What resuming a run may need. The functions read files or ask the host: call them only if needed."""

    attempt: int
    """The number that the next attempt will have."""
    plan: Callable[[], Plan]
    build: Callable[[], BuildOptions]
    secrets: Callable[[Sequence[str]], Mapping[str, str]]
    """Returns the run's secrets, of which the host lacks these. Raises UsageError, or RefusedError."""
    say: Say
    """Shows how an image is made."""
    wait: Say
    """Shows what the run waits for."""
    by: str
    """Names this client for others."""


class Holding(NamedTuple):
    """A thing that a runtime keeps for one run, e.g. its container. `root` is the label of the root that it belongs to."""

    kind: str
    name: str
    id: str
    run: str
    root: str
    is_up: bool


class Supply(NamedTuple):
    """A thing that a runtime keeps for many runs, e.g. an image.

    `created` is in seconds since 1970, `users` the number of holdings that use it. What has no name of its own, because
    its making was broken off, has an `id`, and the name of the `lock` under which it was made.
    """

    kind: str
    name: str
    bytes: int
    created: float
    users: int
    id: str = ""
    lock: str = ""


class Runtime(ABC):
    """Runs of one host, and what keeps them there. Use it in a `with`.

    `desk` is the host, and is not closed with the runtime. `record` tells how runs are kept there, and is recorded with
    each run. `build` is for images and environments that must be made. `facts` are the host's; they are `None` if the
    runtime was opened for a recorded run.
    """

    name: ClassVar[str]
    """The name of its module."""
    has_images: ClassVar[bool] = False
    """Whether a plan for this runtime has an image."""
    has_own_loopback: ClassVar[bool] = False
    """Whether a run's ports are others than those of its host."""
    has_sessions: ClassVar[bool] = False
    """Whether the place ends a run's session at a limit, after which a client has the run go on."""
    makes_environments: ClassVar[bool] = False
    """Whether a plan for this runtime may have an environment that is made on the host."""

    def __init__(
        self,
        desk: HostClient,
        record: RuntimeRecord,
        build: BuildOptions | None = None,
        facts: Facts | None = None,
    ) -> None:
        """Open nothing yet: connections are made when they are first needed."""
        self.desk = desk
        self.record = record
        self.build = build or BuildOptions()
        self.facts = facts

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return how runs would be kept on a host; `None` if this runtime cannot be used there."""
        del host, facts
        return RuntimeRecord(kind=cls.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most runtimes hold nothing
        """Release what the runtime holds besides the desk."""

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

        Return the leased cards. The run may move to any card of `any_of` later. Raises AgentError `card-leased`, with
        nothing made, if the cards are taken; a caller that `queues` and asks again keeps its place in the line.
        """
        made = self.desk.preparation.create(
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
        """Return the name of what `provide` would provide for a plan, e.g. `image`; `None` if nothing."""
        del plan
        return None

    def provide(self, plan: Plan, say: Say) -> str:
        """Make sure that what the run needs is on the host; return what it is and where it came from."""
        del plan, say
        return "nothing is needed"

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Put the values of a run's secrets on the host, readable by this user's processes only."""
        self.desk.preparation.entrust(run, secrets)

    @abstractmethod
    def start(self, run: str) -> str | None:
        """Start a run that was created; return when its agent has begun the first attempt, with the id of its job on a cluster.

        `desk.preparation.start` has the agent start the run's keeper. A runtime that starts the run itself calls
        `desk.preparation.hand_over` first and waits with `desk.runs.await_agent`.
        """

    def start_words(self, job_id: str | None) -> str:
        """Return what is said of a run that `start` has started, with the id that it returned."""
        del job_id
        return "attempt 1"

    def after_refusal(self, error: AgentError) -> str | None:
        """Return what to look at if `start` failed because the host's scheduler refused the run; None for any other error."""
        del error
        return None

    # a recorded run

    def resume(self, run: str, needs: Resumption) -> ResumedRun:
        """Resume a run that was interrupted or waits; return what became of it."""
        return self.ask_to_resume(run, needs)

    def ask_to_resume(self, run: str, needs: Resumption) -> ResumedRun:
        """Have the agent resume a run; wait as long as only its last agent's silence can prove that one dead.

        Secrets are sent only if the host has lost them.
        """
        secrets = None
        while True:
            resumed = self.desk.runs.resume(run, needs.by, secrets)
            if resumed.silence_left_s is not None:
                needs.wait(f"for a sign of life from another machine, {resumed.silence_left_s:.0f} s more")
                time.sleep(1.0)
            elif resumed.secrets and secrets is None:
                secrets = needs.secrets(resumed.secrets)
            else:
                return resumed

    def stop(self, run: str, grace_s: float) -> bool:
        """End a run whose agent was already asked to stop, after `grace_s` seconds at most.

        Return whether the agent must be asked again, because it may have been killed before it recorded an end.
        """
        del run, grace_s
        return False

    @contextlib.contextmanager
    def inside(self, run: str) -> Iterator[HostClient]:
        """Yield a desk from which a command sees what the run's processes see."""
        del run
        yield self.desk

    def open_port(self, run: str, port: int) -> Socket:
        """Open a stream to a TCP port of the loopback that a run's processes have.

        Raises NobodyListensError, RefusedStreamError if the host forbids it, or another HostError.
        """
        del run
        return self.desk.open_port(port)

    def remove(self, run: str) -> str | None:
        """Remove what the runtime keeps for a run that has ended; return what could not be removed, and what to do."""
        del run
        return None

    # everything that it keeps on the host

    def holdings(self) -> list[Holding]:
        """Return what the runtime keeps for runs, including those of other roots."""
        return []

    def supplies(self, root: str | None = None) -> list[Supply]:
        """Return what launch made for many runs: all of it, or what belongs to a root (by its label)."""
        del root
        return []

    def discard(self, thing: Holding | Supply) -> bool:
        """Remove a holding, ending it first if it is up, or a supply; return whether it is gone."""
        raise NotImplementedError(f"{self.name} keeps nothing: {thing}")
