"""What may go: a run that has ended, here and on its host; and what no run of a host names any more."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from launcher.errors import AgentError, HostError, RunError
from launcher.hosts import Agent
from launcher.runs.control import open_docker, runs_of
from launcher.runs.launching import probe
from launcher.runs.mirror import Mirror
from launcher.runtimes import way_to
from launcher.runtimes.container import LABEL_ROOT, LABEL_RUN, name_of
from launcher.spec.base import Record
from launcher.spec.host import Host

if TYPE_CHECKING:
    from launcher.runtimes.engine import Engine
    from launcher.runtimes.images import Held

CLEANING_S = 600.0


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


def remove(agent: Agent, mirror: Mirror, *, even_artifacts: bool) -> None:
    """Remove a run that has ended from its host, with its container, and its mirror here.

    Artifacts that were pulled may go from the host; those that were not, only on demand. A run that its host knows no
    more loses its mirror. Raises RunError for a run that has not ended, and for artifacts that lie nowhere else.
    """
    may_go = even_artifacts or mirror.artifacts.is_dir()
    way = next((one.get("engine") for one in runs_of(agent, mirror.run)), None)
    try:
        agent.call("remove", run=mirror.run, artifacts=may_go, deadline_s=CLEANING_S)
    except AgentError as error:
        if error.code == "refused":
            mend = f"launch stop {mirror.short}     or   launch pull {mirror.short}     or   launch rm --force {mirror.short}"
            raise RunError(f"{error}\n  {mend}") from error
        if error.code != "no-run":
            raise
    if way is not None:
        with open_docker(agent, way) as docker:
            docker.engine.remove(name_of(mirror.run))
    with mirror.disk_errors(mirror.folder):
        if mirror.folder.exists():
            shutil.rmtree(mirror.folder)


def collect_garbage(agent: Agent, host: Host, *, dry_run: bool) -> list[Item]:
    """Remove from a host what no run there names any more, unless `dry_run`; return what it was.

    Containers of runs that have ended and images that no run names go too, where its engine can be used.
    """
    told = _told(agent, dry_run=dry_run)
    with open_engine(agent, host) as engine:
        if engine is None:
            return told.items
        ended = [
            one["Names"][0].lstrip("/")
            for one in engine.containers(**{LABEL_ROOT: told.root})
            if one["Labels"].get(LABEL_RUN) not in told.runs and one["State"] != "running"
        ]
        if not dry_run:
            for name in ended:
                engine.remove(name)
        containers = [Item(kind="container", path=name, bytes=0) for name in ended]
        return [*told.items, *containers, *_prune(engine, told, dry_run=dry_run)]


def prune_images(agent: Agent, host: Host, *, dry_run: bool) -> list[Item]:
    """Remove the images that this root of a host built, that no run there names and no container uses; return them.

    Raises HostError where there is no engine.
    """
    with open_engine(agent, host) as engine:
        return _prune(_there(engine, host), _told(agent, dry_run=True), dry_run=dry_run)


def images_of(agent: Agent, host: Host) -> list[Held]:
    """Return the images that launch built on a host, whoever did. Raises HostError where there is no engine."""
    from launcher.runtimes.images import held

    with open_engine(agent, host) as engine:
        return held(_there(engine, host))


@contextlib.contextmanager
def open_engine(agent: Agent, host: Host) -> Iterator[Engine | None]:
    """Open the engine of a host that can be used; None where there is none."""
    way = way_to(host, probe(agent, host, ()))
    if way is None:
        yield None
        return
    from launcher.runtimes.engine import Engine  # docker-py costs 0.15 s: only those who need it pay

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


def _prune(engine: Engine, told: _Items, *, dry_run: bool) -> list[Item]:
    from launcher.runtimes.images import unneeded

    found = unneeded(engine, told.root, told.images)
    if not dry_run:
        for one in found:
            engine.remove_image(one.name)
    return [Item(kind="image", path=one.name, bytes=one.bytes) for one in found]
