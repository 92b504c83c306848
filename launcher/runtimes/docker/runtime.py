"""Docker: a container of the host's own engine, whose restart policy is the run's keeper."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from launcher.errors import EngineError, HostError, RefusedStreamError
from launcher.hosts import Agent
from launcher.hosts.agent import Stream
from launcher.hosts.agent_file import MAGIC
from launcher.runtimes.docker import images
from launcher.runtimes.docker.container import container as configuration
from launcher.runtimes.docker.container import device_request, name_of, stop_timeout_s
from launcher.runtimes.docker.engine import Container, Engine
from launcher.runtimes.runtime import Runtime, Say, gpus_of
from launcher.values.engine_access import EngineWay, Place
from launcher.values.image import BuildOptions, Image
from launcher.values.plan import Plan

AWAIT_S = 30.0
"""How long an agent may take to appear in its container: a cold Python on a slow disk, at most."""
LOOK_S = 1.0
NO_PROGRAM = (126, 127)
"""The exit codes of a container whose program cannot be started, however often the engine tries."""


class Docker(Runtime):
    """Runs as containers of one engine."""

    engine: Engine

    def __init__(self, agent: Agent, way: EngineWay, settings: BuildOptions | None = None) -> None:
        """Dial the engine; `settings` are for images that must be built. Raises EngineError."""
        super().__init__(agent)
        self.engine = Engine(agent, way)
        try:
            self._facts = self.engine.facts()
        except BaseException:
            self.engine.close()
            raise
        self._settings = settings or BuildOptions()
        self._checked: Image | None = None
        self._prepared: dict[str, tuple[Plan, Place, tuple[str, ...]]] = {}

    def close(self) -> None:
        """Hang up on the engine."""
        self.engine.close()

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
        """Make the run's folder on the host, with its plan, its cards (UUIDs) and the engine that its container is of.

        Raises RefusedError, before anything is made, for cards that the engine cannot hand on and for an image that can
        only be built with a credential in it.
        """
        if gpus:
            device_request(plan.host, self._facts, gpus)
        if plan.image != self._checked:  # who waits for a card asks again and again
            images.check(self.agent, self.engine, plan, self._settings)
            self._checked = plan.image
        answer = self.agent.call(
            "create",
            f"{plan.to_json()}\n".encode(),
            run=run,
            runtime="docker",
            engine=self.engine.way.model_dump(),
            gpus=list(gpus),
            cards=count,
            queues=queues,
        )
        taken = gpus_of(answer)
        self._prepared[run] = (plan, self._place(answer.values), taken)
        return taken

    def provide(self, plan: Plan, say: Say) -> str | None:
        """See that the engine has the plan's image: as it is there, pulled, or built on the host."""
        return images.provide(self.agent, self.engine, plan, self._settings, say)

    def start(self, run: str) -> None:
        """Create the run's container and start it; return when the agent inside has begun the first attempt.

        Raises EngineError, with the container's last words, when no agent comes; the run may be taken back then.
        """
        plan, place, gpus = self._prepared[run]
        self.agent.call("hand_over", run=run)
        self._create(run, plan, 1, place, gpus)
        self._begin(run, place)

    def resume(self, run: str, plan: Plan, attempt: int, say: Say) -> bool:
        """Go on with a run whose container is down or gone; return whether it goes on by this.

        The container that is there starts again; one that was removed is made anew from the plan, and `say` shows how
        far its image has come. Raises EngineError.
        """
        answer = self.agent.call("resume", run=run).values
        if answer.get("place") is None:
            return False
        place, gpus = self._place(answer), tuple(str(one) for one in answer.get("gpus") or ())
        if self.engine.find(run, place.root) is None:
            images.provide(self.agent, self.engine, plan, self._settings, say)
            self._create(run, plan, attempt, place, gpus)
        self._begin(run, place)
        return True

    def stop(self, run: str, grace_s: float) -> None:
        """End a run's container, which its agent has been wished to leave; it is down when this returns."""
        container = self.engine.find(run, self._place_of(run).root)
        if container is not None:
            self.engine.stop(container, stop_timeout_s(grace_s))

    def agent_inside(self, run: str) -> Agent:
        """Return an agent in the run's container, or, where that does not run, in a new one that is like it.

        Raises EngineError, with what there is instead.
        """
        place = self._place_of(run)
        container = self.engine.find(run, place.root)
        if container is None:
            words = f"{self.agent.host}: the container of {run} was removed"
            mend = f"its files are there   {self.agent.by_hand(shlex.join(['ls', place.path]))}"
            raise EngineError(self.agent.host, f"{words}\n  {mend}")
        if container.status == "paused":
            words = f"{self.agent.host}: the container of {run} is paused"
            mend = f"let it go on   {self.engine.by_hand('unpause', name_of(run))}"
            raise EngineError(self.agent.host, f"{words}\n  {mend}")
        script = f'echo; echo "{MAGIC.decode()}have"; exec python3 -I "$0" serve "$1"'
        words_inside = ["sh", "-c", script, place.agent, place.path.rpartition("/runs/")[0]]
        is_running = container.status == "running"
        open_stream = self.engine.open_exec if is_running else self.engine.open_beside
        return Agent(self.agent.host, _Inside(self.agent.host, open_stream(container, words_inside)))

    def _create(self, run: str, plan: Plan, attempt: int, place: Place, gpus: Sequence[str]) -> None:
        self.engine.create(name_of(run), configuration(plan, run, attempt, place, self._facts, gpus))

    def _begin(self, run: str, place: Place) -> None:
        container = self.engine.find(run, place.root)
        if container is None:
            raise EngineError(self.agent.host, f"{self.agent.host}: the container of {run} was removed")
        try:
            self.engine.start(container)
        except EngineError as error:
            self.engine.remove(container)
            raise _explained(error) from error
        deadline = time.monotonic() + AWAIT_S
        while time.monotonic() < deadline:
            is_down = _is_down(
                self.engine.find(run, place.root)
            )  # asked first: one that is down may have been here
            answer = self.agent.call("await", run=run, wait_s=0.0 if is_down else LOOK_S)
            if answer.values.get("came") is True:
                return
            if is_down:
                break
        said = self.engine.log(container) or "it said nothing"
        self.engine.stop(container, 0)
        self.engine.remove(container)
        words = f"{self.agent.host}: the agent of {run} did not begin in its container: {said}"
        raise _explained(EngineError(self.agent.host, words))

    def _place_of(self, run: str) -> Place:
        return self._place(self.agent.call("place", run=run).values)

    def _place(self, answer: dict[str, Any]) -> Place:
        try:
            return Place.model_validate(answer.get("place"))
        except ValidationError as error:
            raise HostError(
                self.agent.host, f"{self.agent.host}: the agent did not say where the run lies"
            ) from error


class _Inside:
    """A link to an agent in a container, from where no other stream leads on."""

    about = "in its container"

    def __init__(self, host: str, stream: Stream) -> None:
        self._host = host
        self.settimeout = stream.settimeout
        self.recv = stream.recv
        self.sendall = stream.sendall
        self.close = stream.close

    def by_hand(self, command: str) -> str:
        """Return the command as it is: a person is in there already."""
        return command

    def open_socket(self, path: str) -> Stream:
        """Refuse."""
        raise RefusedStreamError(self._host, f"{self._host}: {path} is not for a container")

    def open_program(self, words: Sequence[str]) -> Stream:
        """Refuse."""
        raise RefusedStreamError(self._host, f"{self._host}: {words[0]} is not for a container")


def _is_down(container: Container | None) -> bool:
    """Whether a container is one in which no agent will appear any more."""
    if container is None or container.status == "exited":
        return True
    return container.status == "restarting" and container.exit_code in NO_PROGRAM


def _explained(error: EngineError) -> EngineError:
    """Add what to do to an engine's word on a container that it cannot start."""
    text = str(error)
    no_python = "its image holds no python3: choose another   image = … in the job, base = … for the host"
    mends = {
        'exec: "python3"': no_python,
        "exec python3 failed": no_python,
        "docker-init": "install its init: the package `tini` or `docker-init`",
        "could not select device driver": "install nvidia-container-toolkit there and restart the engine",
        "bind source path does not exist": "is its root on a file system that the engine cannot see? set root = …",
        "permission denied": "can the engine see this folder (root-squashed NFS)? set root = …",
    }
    mend = next((mend for word, mend in mends.items() if word in text), None)
    return EngineError(error.host, f"{text}\n  {mend}" if mend else text)
