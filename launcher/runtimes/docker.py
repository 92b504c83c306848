"""Docker: a container of the host's own engine, whose restart policy is the run's keeper."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from launcher.errors import EngineError, HostError, RefusedStreamError
from launcher.hosts import Agent
from launcher.hosts.agent import Stream
from launcher.hosts.agent_file import MAGIC
from launcher.runtimes import images
from launcher.runtimes.container import container, name_of, stop_timeout_s
from launcher.runtimes.engine import Engine
from launcher.runtimes.runtime import Runtime, Say
from launcher.spec.container import EngineWay, Place
from launcher.spec.image import Settings
from launcher.spec.plan import Plan

AWAIT_S = 30.0
"""How long an agent may take to appear in its container: a cold Python on a slow disk, at most."""
LOOK_S = 1.0
NO_PROGRAM = (126, 127)
"""The exit codes of a container whose program cannot be started, however often the engine tries."""


class Docker(Runtime):
    """Runs as containers of one engine."""

    def __init__(self, agent: Agent, way: EngineWay, settings: Settings | None = None) -> None:
        """Dial the engine; `settings` are for images that must be built. Raises EngineError."""
        super().__init__(agent)
        self.way = way
        self.engine = Engine(agent, way)
        self._facts = self.engine.facts()
        self._settings = settings or Settings()
        self._prepared: dict[str, tuple[Plan, Place, tuple[str, ...]]] = {}

    def close(self) -> None:
        """Hang up on the engine."""
        self.engine.close()

    def create(self, run: str, plan: Plan, gpus: Sequence[str]) -> None:
        """Make the run's folder on the host, with its plan, its cards (UUIDs) and the engine that its container is of."""
        answer = self.agent.call(
            "create",
            f"{plan.to_json()}\n".encode(),
            run=run,
            runtime="docker",
            engine=self.way.model_dump(),
            gpus=list(gpus),
        )
        self._prepared[run] = (plan, self._place(answer.values), tuple(gpus))

    def provide(self, plan: Plan, say: Say) -> str | None:
        """See that the engine has the plan's image: as it is there, pulled, or built on the host."""
        return images.provide(self.agent, self.engine, plan, self._settings, say)

    def start(self, run: str) -> None:
        """Create the run's container and start it; return when the agent inside has begun the first attempt.

        Raises EngineError, with the container's last words, when no agent comes; the run is not kept then.
        """
        plan, place, gpus = self._prepared[run]
        self._create(run, plan, 1, place, gpus)
        self.agent.call("hand_over", run=run)
        try:
            self._begin(run)
        except EngineError:
            self.agent.call("take_back", run=run)
            raise

    def resume(self, run: str, plan: Plan, attempt: int) -> bool:
        """Go on with a run whose container is down or gone; return whether it was interrupted.

        The container that is there starts again; one that was removed is made anew from the plan.
        """
        answer = self.agent.call("resume", run=run).values
        if answer.get("place") is None:
            return False
        place, gpus = self._place(answer), tuple(str(one) for one in answer.get("gpus") or ())
        if self.engine.state(name_of(run)) is None:
            images.provide(self.agent, self.engine, plan, self._settings, lambda _: None)
            self._create(run, plan, attempt, place, gpus)
        self._begin(run)
        return True

    def stop(self, run: str, grace_s: float) -> None:
        """End a run's container, which its agent has been wished to leave; it is down when this returns."""
        self.engine.stop(name_of(run), stop_timeout_s(grace_s))

    def agent_inside(self, run: str) -> Agent:
        """Return an agent in the run's container, or, where that does not run, in a new one that is like it.

        Raises EngineError, with what there is instead.
        """
        place = self._place(self.agent.call("place", run=run).values)
        state = self.engine.state(name_of(run))
        if state is None:
            words = f"{self.agent.host}: the container of {run} was removed"
            raise EngineError(
                self.agent.host, f"{words}\n  its files are there   ssh {self.agent.host} ls {place.path}"
            )
        script = f'echo; echo "{MAGIC.decode()}have"; exec python3 -I "$0" serve "$1"'
        words_inside = ["sh", "-c", script, place.agent, place.path.rpartition("/runs/")[0]]
        is_running = state.get("Status") == "running"
        open_stream = self.engine.open_exec if is_running else self.engine.open_beside
        return Agent(self.agent.host, _Inside(self.agent.host, open_stream(name_of(run), words_inside)))

    def _create(self, run: str, plan: Plan, attempt: int, place: Place, gpus: Sequence[str]) -> None:
        self.engine.create(name_of(run), container(plan, run, attempt, place, self._facts, gpus))

    def _begin(self, run: str) -> None:
        name = name_of(run)
        try:
            self.engine.start(name)
        except EngineError as error:
            self.engine.remove(name)
            raise _explained(error) from error
        deadline = time.monotonic() + AWAIT_S
        while time.monotonic() < deadline:
            is_down = _is_down(self.engine.state(name))  # asked first: one that is down may have been here
            answer = self.agent.call("await", run=run, wait_s=0.0 if is_down else LOOK_S)
            if answer.values.get("came") is True:
                return
            if is_down:
                break
        said = self.engine.log(name) or "it said nothing"
        self.engine.stop(name, 0)
        self.engine.remove(name)
        words = f"{self.agent.host}: the agent of {run} did not begin in its container: {said}"
        raise _explained(EngineError(self.agent.host, words))

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

    def open_socket(self, path: str) -> Stream:
        """Refuse."""
        raise RefusedStreamError(self._host, f"{self._host}: {path} is not for a container")

    def open_program(self, words: Sequence[str]) -> Stream:
        """Refuse."""
        raise RefusedStreamError(self._host, f"{self._host}: {words[0]} is not for a container")


def _is_down(state: dict[str, Any] | None) -> bool:
    """Whether a container is one in which no agent will appear any more."""
    if state is None or state.get("Status") == "exited":
        return True
    return state.get("Status") == "restarting" and state.get("ExitCode") in NO_PROGRAM


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
