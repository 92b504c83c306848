"""What may go: a run that has ended, here and on its host; and what no run of a host names any more."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from launcher.errors import AgentError, EngineError, HostError, RunError
from launcher.hosts import Agent
from launcher.runs.control import open_docker, runs_of
from launcher.runs.launching import NO_JOB, probe
from launcher.runs.mirror import Mirror
from launcher.runtimes import way_to
from launcher.runtimes.docker.container import LABEL_ROOT, LABEL_RUN, name_of
from launcher.values.base import Record
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.runtimes.docker.engine import Engine
    from launcher.runtimes.docker.images import Held

CLEANING_S = 600.0
UNNAMED_S = 86_400.0


class Item(Record):
    """A thing that no run of a host names: what it is, its path below the host's root, and the bytes it takes."""

    kind: str
    path: str
    bytes: Annotated[int, Field(ge=0)]


class _Items(Record):
    items: list[Item]
    runs: list[str] = []
    images: list[str] = []
    root: str = ""


def remove(agent: Agent, mirror: Mirror, *, even_artifacts: bool) -> str | None:
    """Remove a run that has ended from its host, with its container, and its mirror here; return what is left of it.

    Artifacts that were pulled may go from the host; those that were not, only on demand. A run that its host knows no
    more loses its mirror. Raises RunError for a run that has not ended, and for artifacts that lie nowhere else.
    """
    may_go = even_artifacts or mirror.artifacts.is_dir()
    way = next((one.get("engine") for one in runs_of(agent, mirror.run)), None)
    root = agent.call("place", run=mirror.run).values.get("place", {}).get("root") if way else None
    try:
        agent.call("remove", run=mirror.run, artifacts=may_go, force=even_artifacts, deadline_s=CLEANING_S)
    except AgentError as error:
        if error.code == "refused":
            ways = [
                f"launch stop {mirror.short}",
                f"launch pull {mirror.short}",
                f"launch rm --force {mirror.short}",
            ]
            mend = f"launch stop --now {mirror.short}" if even_artifacts else "     or   ".join(ways)
            raise RunError(f"{error}\n  {mend}") from error
        if error.code != "no-run":
            raise
    left = _remove_container(agent, mirror.run, way, str(root)) if way is not None else None
    with mirror.disk_errors(mirror.folder):
        if mirror.folder.exists():
            shutil.rmtree(mirror.folder)
    return left


def _remove_container(agent: Agent, run: str, way: dict[str, Any], root: str) -> str | None:
    """Remove a run's container; return why it could not be."""
    try:
        with open_docker(agent, way) as docker:
            container = docker.engine.find(run, root)
            if container is not None:
                docker.engine.remove(container)
    except EngineError as error:
        what = f"its container is left: {str(error).splitlines()[0]}"
        return f"{what}\n  it goes when its engine answers again   launch gc --host {agent.host}"
    return None


def collect_garbage(agent: Agent, host: Host, *, dry_run: bool) -> list[Item]:
    """Remove from a host what no run there names any more, unless `dry_run`; return what it was.

    Containers of runs that have ended and images older than a day that no run names go too, where its engine can be
    used.
    """
    with open_engine(agent, host) as engine:
        # What the engine has is looked at before it is asked which runs there are: what comes in between is theirs.
        there = engine.containers() if engine is not None else []
        images = _held_long(engine, _root_of(agent)) if engine is not None else []
        told = _told(agent, dry_run=dry_run)
        if engine is None:
            return told.items
        ended = [
            one
            for one in there
            if (one.labels or {}).get(LABEL_ROOT) == told.root
            and (one.labels or {}).get(LABEL_RUN) not in told.runs
            and one.status in ("created", "exited", "dead")
        ]
        if not dry_run:
            from launcher.runtimes.docker.engine import Container

            for one in ended:
                engine.remove(Container(one.id, one.status, None))
        containers = [
            Item(kind="container", path=name_of((one.labels or {}).get(LABEL_RUN, "?")), bytes=0)
            for one in ended
        ]
        return [*told.items, *containers, *_prune(engine, images, told, dry_run=dry_run)]


def prune_images(agent: Agent, host: Host, *, dry_run: bool) -> list[Item]:
    """Remove the images that this root of a host built, that no run there names and no container uses; return them.

    Raises HostError where there is no engine.
    """
    from launcher.runtimes.docker.images import held

    with open_engine(agent, host) as engine:
        there = _there(engine, host)
        images = held(there, _root_of(agent))
        return _prune(there, images, _told(agent, dry_run=True), dry_run=dry_run)


def images_of(agent: Agent, host: Host) -> list[Held]:
    """Return the images that launch built on a host, whoever did. Raises HostError where there is no engine."""
    from launcher.runtimes.docker.images import held

    with open_engine(agent, host) as engine:
        return held(_there(engine, host))


@contextlib.contextmanager
def open_engine(agent: Agent, host: Host) -> Iterator[Engine | None]:
    """Open the engine of a host that can be used; None where there is none."""
    way = way_to(host, probe(agent, host, NO_JOB))
    if way is None:
        yield None
        return
    from launcher.runtimes.docker.engine import Engine  # docker-py costs 0.15 s: only those who need it pay

    with contextlib.closing(Engine(agent, way)) as engine:
        yield engine


def _there(engine: Engine | None, host: Host) -> Engine:
    if engine is None:
        mend = f"what is there   launch probe --host {host.name}"
        raise HostError(host.name, f"{host.name} has no container engine that can be used\n  {mend}")
    return engine


def _told(agent: Agent, *, dry_run: bool) -> _Items:
    answer = agent.call("gc", dry_run=dry_run, deadline_s=CLEANING_S)
    try:
        return _Items.model_validate(answer.values, strict=True)
    except ValidationError as error:
        raise RunError(f"{agent.host} sent what is no list of what may go") from error


def _root_of(agent: Agent) -> str:
    """Return what marks containers and images of this agent's root."""
    return str(agent.call("root").values.get("root"))


def _held_long(engine: Engine, root: str) -> list[Held]:
    """Return the images of a root that were made long ago: `launch image build` makes them ahead of their first run."""
    from launcher.runtimes.docker.images import held

    return [one for one in held(engine, root) if time.time() - one.created > UNNAMED_S]


def _prune(engine: Engine, images: list[Held], told: _Items, *, dry_run: bool) -> list[Item]:
    from launcher.runtimes.docker.images import unneeded

    found = unneeded(images, told.images)
    if not dry_run:
        for one in found:
            engine.remove_image(one.name)
    return [Item(kind="image", path=one.name, bytes=one.bytes) for one in found]
