"""Removal: of a run that has ended, here and on its host; and of what no run of a host names any more."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Iterator

from launcher.errors import AgentError, HostError, RunError
from launcher.hosts import Desk
from launcher.runs.control import summary_of
from launcher.runs.mirror import Mirror
from launcher.runs.probing import NO_JOB, probe
from launcher.runtimes import Runtime, open_all, open_for_run
from launcher.runtimes.runtime import Holding, Supply
from launcher.values.answers import Removed
from launcher.values.host import Host

UNNAMED_S = 86_400.0
"""How long an image that no run names stays: `launch image build` makes images before their first run."""


def remove(desk: Desk, mirror: Mirror, *, even_artifacts: bool) -> str | None:
    """Remove a run that has ended from its host, with what its runtime keeps for it, and its mirror here.

    Return what could not be removed. Artifacts that were pulled may be removed from the host, others only by
    `even_artifacts`. A run that its host does not have only loses its mirror.
    Raises RunError for a run that has not ended, and for artifacts that were not pulled.
    """
    may_go = even_artifacts or mirror.artifacts.is_dir()
    summary = summary_of(desk, mirror.run)
    try:
        desk.runs.remove(mirror.run, with_artifacts=may_go, by_force=even_artifacts)
    except AgentError as error:
        if error.code == "refused":
            commands = [
                f"launch stop {mirror.short}",
                f"launch pull {mirror.short}",
                f"launch rm --force {mirror.short}",
            ]
            mend = f"launch stop --now {mirror.short}" if even_artifacts else "     or   ".join(commands)
            raise RunError(f"{error}\n  {mend}") from error
        if error.code != "no-run":
            raise
    left = None
    if summary is not None:
        with open_for_run(desk, summary) as runtime:
            left = runtime.remove(mirror.run)
    with mirror.disk_errors(mirror.folder):
        if mirror.folder.exists():
            shutil.rmtree(mirror.folder)
    return left


def collect_garbage(desk: Desk, host: Host, *, dry_run: bool) -> list[Removed]:
    """Remove from a host what no run there names any more, unless `dry_run`; return what it was.

    That includes containers of runs that have ended, and images older than a day that no run names.
    """
    with open_runtimes(desk, host) as runtimes:
        root = desk.upkeep.root_label()
        # Look at the runtimes before asking which runs there are: what appears in between belongs to a new run.
        kept = [(runtime, runtime.holdings(), _old(runtime.supplies(root))) for runtime in runtimes]
        garbage = desk.upkeep.collect_garbage(dry_run=dry_run)
        items = [*garbage.items]
        for runtime, holdings, supplies in kept:
            ended = [
                holding
                for holding in holdings
                if holding.root == garbage.root and holding.run not in garbage.runs and not holding.is_up
            ]
            unneeded = _unneeded(supplies, garbage.images)
            items += _discard(runtime, [*ended, *unneeded], dry_run=dry_run)
        return items


def prune_images(desk: Desk, host: Host, *, dry_run: bool) -> list[Removed]:
    """Remove the images that this root of a host built, that no run there names and no container uses; return them.

    Raises HostError if the host has no container engine that can be used.
    """
    with open_runtimes(desk, host) as runtimes:
        root = desk.upkeep.root_label()
        kept = [(runtime, runtime.supplies(root)) for runtime in _with_images(runtimes, host)]
        named = desk.upkeep.collect_garbage(dry_run=True).images
        items = []
        for runtime, images in kept:
            items += _discard(runtime, _unneeded(images, named), dry_run=dry_run)
        return items


def images_of(desk: Desk, host: Host) -> list[Supply]:
    """Return the images that launch built on a host, of all its roots. Raises HostError if it has no container engine."""
    with open_runtimes(desk, host) as runtimes:
        return [image for runtime in _with_images(runtimes, host) for image in runtime.supplies()]


@contextlib.contextmanager
def open_runtimes(desk: Desk, host: Host) -> Iterator[list[Runtime]]:
    """Open every runtime that can be used on a host, which is probed for that."""
    with open_all(desk, host, probe(desk, host, NO_JOB)) as runtimes:
        yield runtimes


def _with_images(runtimes: Collection[Runtime], host: Host) -> list[Runtime]:
    chosen = [runtime for runtime in runtimes if runtime.has_images]
    if not chosen:
        mend = f"what is there   launch probe --host {host.name}"
        raise HostError(host.name, f"{host.name} has no container engine that can be used\n  {mend}")
    return chosen


def _old(supplies: Collection[Supply]) -> list[Supply]:
    return [supply for supply in supplies if time.time() - supply.created > UNNAMED_S]


def _unneeded(supplies: Collection[Supply], named: Collection[str]) -> list[Supply]:
    return [supply for supply in supplies if supply.users == 0 and supply.name not in named]


def _discard(runtime: Runtime, things: Collection[Holding | Supply], *, dry_run: bool) -> list[Removed]:
    if not dry_run:
        for thing in things:
            runtime.discard(thing)
    return [
        Removed(kind=thing.kind, path=thing.name, bytes=thing.bytes if isinstance(thing, Supply) else 0)
        for thing in things
    ]
