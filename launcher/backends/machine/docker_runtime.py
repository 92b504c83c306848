"""Docker: a run is a container of the host's engine, whose restart policy keeps the run alive."""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.backends.base.nested_channel import NestedChannel, serving
from launcher.backends.base.runtime import ResumeInputs, RunResource, Runtime, Say, SharedResource
from launcher.backends.machine.docker.build_leftovers import LABEL_STEP, discard_remains, remains, step_label
from launcher.backends.machine.docker.container import (
    DOWN,
    LABEL_CHECK,
    LABEL_ROOT,
    LABEL_RUN,
    Container,
    EngineFacts,
    card_request,
    cards_refused,
    listed_way,
    name_of,
    stop_timeout_s,
    ways_to_try,
)
from launcher.backends.machine.docker.container import container as configuration
from launcher.backends.machine.docker.images import check_image, image_supplies, provide_image
from launcher.errors import EngineError, PortClosedError
from launcher.planning.placement import engine as usable_engine
from launcher.planning.placement import is_closed
from launcher.transport.channel import AgentChannel, Socket
from launcher.transport.client.host_client import HostClient
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan
from launcher.values.record import RuntimeRecord
from launcher.values.reported.answers import ResumedRun
from launcher.values.reported.engine_access import EngineAccess, RunLocation
from launcher.values.software.image import BuildOptions, Image

if TYPE_CHECKING:
    from launcher.backends.machine.docker.engine import DockerEngine

AWAIT_S = 30.0
"""The longest wait, in seconds, for the agent in a container: a first start of Python from a slow disk is slow."""
LOOK_S = 1.0
CHECK_S = 60.0
"""Seconds that a container for checking an image may wait for its start.

If it has not started by then, its client must have died.
"""
READY = b"+"
"""The reply of agent/verbs/relay.py once a port has accepted the connection."""
TRIAL = "launcher/trial:cards"
"""The name of the empty image that shows whether an engine hands on cards. It labels the image and is never its tag."""
NO_PROGRAM = (126, 127)
"""Exit codes of a container whose program cannot be started. The engine's retries do not help."""


class Docker(Runtime):
    """Runs as containers of one engine. The connection to the engine opens on first use."""

    name = "docker"
    has_images = True
    has_own_loopback = True

    _checked: Image | None = None
    _way_of_cards: str | None = None

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record with the host's first usable engine; `None` without one."""
        engine = usable_engine(host, facts)
        if engine is None:
            return None
        way = EngineAccess(
            name=engine.name, socket=engine.socket, program=engine.program, sudo=is_closed(engine)
        )
        return RuntimeRecord(kind=cls.name, engine=way)

    @functools.cached_property
    def engine(self) -> DockerEngine:
        """The client of the engine. Raises EngineError."""
        from launcher.backends.machine.docker.engine import DockerEngine

        if self.record.engine is None:
            words = f"{self.client.host}: the run's record does not say which container engine it belongs to"
            raise EngineError(self.client.host, words)
        return DockerEngine(self.client, self.record.engine)

    @functools.cached_property
    def _engine_facts(self) -> EngineFacts:
        return self.engine.facts()

    @functools.cached_property
    def _code(self) -> dict[str, str | None]:
        """The folders of the agent as images compiled it, by the image's name."""
        return {}

    @functools.cached_property
    def _prepared(self) -> dict[str, tuple[Plan, RunLocation, tuple[str, ...]]]:
        return {}

    def close(self) -> None:
        """Close the connection to the engine."""
        if "engine" in vars(self):
            self.engine.close()

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
        """Make the run's folder on the host and lease its cards. A container always has the same cards.

        Raises RefusedError, with nothing made, for cards that the engine cannot pass on, and for an image
        whose build would store a credential in it.
        """
        if gpus:
            self._card_request(gpus)
        if plan.image != self._checked:  # a launch that waits for a card calls this repeatedly
            check_image(self.client, self.engine, plan, self.build)
            self._checked = plan.image
        made = self.client.preparation.create(
            run, plan, self.name, self.engine.way, gpus, count, any_of, queues=queues
        )
        self._prepared[run] = (plan, made.place, made.gpus or ())
        return made.gpus or ()

    def needs(self, plan: Plan) -> str | None:
        """Return `image`: every container has one."""
        return "image"

    def provide(self, plan: Plan, say: Say) -> str:
        """Provide the plan's image on the engine: find, pull or build it."""
        return self._provide(plan, self.build, say)

    def _provide(self, plan: Plan, build: BuildOptions, say: Say) -> str:
        provided = provide_image(self.client, self.engine, plan, build, say)
        if plan.image is not None:
            self._code[plan.image.name] = provided.code
        return provided.words

    def start(self, run: str) -> str | None:
        """Create the run's container and start it. Return when the agent inside has begun the first attempt.

        Raises EngineError with the container's last output if no agent appears; the run may then be removed.
        """
        plan, place, gpus = self._prepared[run]
        self.client.preparation.hand_over(run)
        self._begin(run, place, self._create(run, plan, 1, place, gpus))
        return None

    # a recorded run

    def resume(self, run: str, needs: ResumeInputs) -> ResumedRun:
        """Start the run's container again. Make a new one from the plan if it was removed or cannot be used.

        Raises EngineError.
        """
        resumed = self.ask_to_resume(run, needs)
        place = resumed.place
        if place is None:
            return resumed
        container = self.engine.find(run, place.root)
        if container is not None and resumed.is_new:
            self.engine.remove(container)
            container = None
        if container is None:
            plan = needs.plan()
            self._provide(plan, needs.build(), needs.say)
            container = self._create(run, plan, needs.attempt, place, resumed.gpus)
        self._begin(run, place, container)
        return resumed

    def stop(self, run: str, grace_s: float) -> bool:
        """Stop the run's container. It has stopped when this returns. A killed container has recorded no end."""
        container = self.engine.find(run, self.client.runs.location(run).root)
        if container is not None:
            self.engine.stop(container, stop_timeout_s(grace_s))
        return True

    @contextlib.contextmanager
    def inside(self, run: str) -> Iterator[HostClient]:
        """Yield a client of an agent in the run's container, or in a new one like it if it is not running.

        Raises EngineError with an alternative if no container can be used.
        """
        host, place = self.client.host, self.client.runs.location(run)
        container = self.engine.find(run, place.root)
        if container is None:
            words = f"{host}: the container of {run} was removed"
            mend = f"its files are on the host   {self.client.by_hand(shlex.join(['ls', place.path]))}"
            raise EngineError(host, f"{words}\n  {mend}")
        if container.status == "paused":
            words = f"{host}: the container of {run} is paused"
            mend = f"resume it   {self.engine.by_hand('unpause', name_of(run))}"
            raise EngineError(host, f"{words}\n  {mend}")
        command = serving(place)
        is_running = container.status == "running"
        open_stream = self.engine.open_exec if is_running else self.engine.open_beside
        with HostClient(
            AgentChannel(host, NestedChannel(host, open_stream(container, command), "container"))
        ) as client:
            yield client

    def open_port(self, run: str, port: int) -> Socket:
        """Open a stream to a TCP port in the run's container, which must be running."""
        host, place = self.client.host, self.client.runs.location(run)
        container = self.engine.find(run, place.root)
        if container is None or container.status != "running":
            raise EngineError(host, f"{host}: the container of {run} does not run: nothing listens in it")
        stream = self.engine.open_exec(container, ["python3", "-I", place.agent, "relay", str(port)])
        if stream.recv(1) != READY:
            stream.close()
            raise PortClosedError(
                host, f"{host}: no process listens on port {port} in the container of {run}"
            )
        return stream

    def remove(self, run: str) -> str | None:
        """Remove the run's container. Return a message if the engine refuses or does not answer."""
        try:
            container = self.engine.find(run, self.client.upkeep.root_label())
            if container is not None:
                self.engine.remove(container)
        except EngineError as error:
            words = f"its container is left: {str(error).splitlines()[0]}"
            return (
                f"{words}\n  once its engine answers again, remove it   launch gc --host {self.client.host}"
            )
        return None

    # all objects of the runtime on the host

    def holdings(self) -> list[RunResource]:
        """Return the containers of runs, of this root and others, and stale containers for checking an image.

        They have the label LABEL_RUN or LABEL_CHECK, which no image has. Another user's container that was made
        from launcher's image therefore has neither.
        """
        found = []
        for listed in self.engine.containers():
            labels, is_up = listed.labels or {}, listed.status not in DOWN
            if run := labels.get(LABEL_RUN):
                root = labels.get(LABEL_ROOT, "")
                found.append(RunResource("container", name_of(run), listed.id, run, root, is_up))
            elif (root := labels.get(LABEL_CHECK, "")) and time.time() - listed.created > CHECK_S:
                found.append(
                    RunResource("container", f"check of {listed.image[:19]}", listed.id, "", root, is_up)
                )
        return found

    def supplies(self, root: str | None = None) -> list[SharedResource]:
        """Return the images that launch built on the engine, the latest first, then leftovers of builds."""
        return [*image_supplies(self.engine, root), *remains(self.client, self.engine, root)]

    def discard(self, thing: RunResource | SharedResource) -> bool:
        """Remove an image, or a container, which is killed first if it runs. Raises EngineError.

        Return whether it is gone: an image that is being built or is in use stays.
        """
        if isinstance(thing, SharedResource):
            if thing.id:
                return discard_remains(self.client, self.engine, thing)
            return self.engine.remove_image(thing.name)
        container = Container(thing.id, "", None)
        if thing.is_up:
            self.engine.stop(container, 0)
        self.engine.remove(container)
        return True

    def _create(
        self, run: str, plan: Plan, attempt: int, place: RunLocation, gpus: Sequence[str]
    ) -> Container:
        code = self._code.get(plan.image.name) if plan.image is not None else None
        cards = self._card_request(gpus) if gpus else None
        config = configuration(plan, run, attempt, place, self._engine_facts, cards, code)
        return self.engine.create(name_of(run), config)

    def _card_request(self, gpus: Sequence[str]) -> Mapping[str, object]:
        """Return the request for cards by UUID. Raises RefusedError for an engine that hands on none."""
        facts = self._engine_facts
        if self._way_of_cards is None and not facts.is_podman:
            self._way_of_cards = listed_way(facts, gpus, self._indices) or self._accepted_way(gpus)
        if self._way_of_cards is None:
            raise cards_refused(self.client.host, facts)
        return card_request(self._way_of_cards, gpus, self._indices)

    def _accepted_way(self, gpus: Sequence[str]) -> str | None:
        """Return the way of handing on cards that the engine accepts in a trial; `None` if it accepts none."""
        root = self.client.upkeep.root_label()
        labels = {LABEL_CHECK: root, LABEL_STEP: step_label(TRIAL, root)}
        for way in ways_to_try(self._engine_facts):
            if self.engine.hands_on(card_request(way, gpus, self._indices), labels):
                return way
        return None

    @functools.cached_property
    def _indices(self) -> Mapping[str, int]:
        """The driver's indices of the host's cards by UUID. A part of a card (MIG) has none."""
        facts = self.facts or self.client.probe()
        return {gpu.uuid: gpu.index for gpu in facts.gpus if gpu.uuid.startswith("GPU-")}

    def _begin(self, run: str, place: RunLocation, container: Container) -> None:
        """Start the run's container and wait until its agent has begun an attempt. Raises EngineError."""
        host = self.client.host
        try:
            self.engine.start(container)
        except EngineError as error:
            found = self.engine.find(run, place.root)  # perhaps only the answer was lost
            if found is None or found.status in DOWN:
                self.engine.remove(container)
                raise _explained(error) from error
        if self._has_begun(run, place):
            return
        output = self.engine.log(container) or "it said nothing"
        self.engine.stop(container, 0)
        self.engine.remove(container)
        words = f"{host}: the agent of {run} did not begin in its container: {output}"
        raise _explained(EngineError(host, words))

    def _has_begun(self, run: str, place: RunLocation) -> bool:
        """Wait for the agent in a container. Return whether it has appeared."""
        deadline = time.monotonic() + AWAIT_S
        while time.monotonic() < deadline:
            # Look at the container first: its agent may have appeared before it stopped.
            is_down = _is_down(self.engine.find(run, place.root))
            if self.client.runs.await_agent(run, 0.0 if is_down else LOOK_S):
                return True
            if is_down:
                return False
        return False


def _is_down(container: Container | None) -> bool:
    """Return whether no agent can appear in a container any more."""
    if container is None or container.status == "exited":
        return True
    return container.status == "restarting" and container.exit_code in NO_PROGRAM


def _explained(error: EngineError) -> EngineError:
    """Add the next step to an engine's message about a container that it cannot start."""
    text = str(error)
    no_python = "its image has no python3: choose another   image = … in the job, base = … for the host"
    mends = {
        'exec: "python3"': no_python,
        "exec python3 failed": no_python,
        "docker-init": "install its init: the package `tini` or `docker-init`",
        "failed to add device rules": "a rootless engine needs no-cgroups = true in /etc/nvidia-container-runtime/config.toml, or CDI devices",
        "bind source path does not exist": "is its root on a file system that the engine cannot see? set root = …",
        "permission denied": "can the engine see this folder (root-squashed NFS)? set root = …",
    }
    mend = next((mend for word, mend in mends.items() if word in text), None)
    return EngineError(error.host, f"{text}\n  {mend}" if mend else text)


RUNTIME = Docker
