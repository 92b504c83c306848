"""Shipping: sends the files of a launch that its host does not have yet."""

from __future__ import annotations

import functools
from typing import Any

from rich.filesize import decimal

from launcher.errors import ConnectionLostError, RunError
from launcher.hosts import Desk
from launcher.runs import tree
from launcher.runs.digests import Digests
from launcher.runs.meter import Meter
from launcher.runs.mirror import Mirror
from launcher.runs.resolve import Task
from launcher.runs.view import Stage, View
from launcher.values.plan import Plan

TRIES = 3


def ship(desk: Desk, mirror: Mirror, stage: Stage, plan: Plan, task: Task, view: View) -> str:
    """Put the code, the local model and the local data of a plan in place on the host; return what was sent, in words."""
    sources = {"model": plan.model, **{f"data.{name}": source for name, source in plan.data.items()}}
    local = {
        key: task.locate(key, source.value)
        for key, source in sources.items()
        if source and source.kind == "local"
    }
    collected = tree.collect(task.code, local, mirror.folder.parent)
    for path in collected.left_out[:5]:
        view.note(f"not sent: {path}")
    if len(collected.left_out) > 5:
        view.note(f"not sent: {len(collected.left_out) - 5} more like these")
    digests = Digests(task.code)
    manifest = tree.manifest(collected, digests, stage.moved)
    digests.save()
    try:
        sent = _send(desk, mirror.run, collected, manifest, stage)
    except ConnectionLostError as error:
        words = f"{error}\n  no run was begun   the same command again sends only what has not arrived whole"
        raise ConnectionLostError(error.host, words) from error
    if not sent:
        return f"{len(manifest)} files, none to send"
    return f"{len(sent)} of {len(manifest)} files sent, {decimal(sum(sent.values()))}"


def _send(
    desk: Desk, run: str, collected: tree.CodeTree, manifest: dict[str, Any], stage: Stage
) -> dict[str, int]:
    """Offer a tree to the host and send what it lacks, until it has put the tree in place; return the sizes in bytes.

    Raises RunError if the host asks for what was not offered, or still lacks files after several tries.
    """
    sources = {
        manifest[entry.path]["sha256"]: tree.SizedFile(
            entry.name, entry.source, int(manifest[entry.path]["size"])
        )
        for entry in collected.entries
        if entry.link is None
    }
    sent: dict[str, int] = {}
    missing = desk.preparation.offer(run, manifest)
    for _ in range(TRIES):
        if not missing:
            return sent
        try:
            requested = [sources[sha256] for sha256 in missing]
        except KeyError as error:
            raise RunError(f"{desk.host} asks for a file that was not offered") from error
        sizes = [file.size for file in requested]
        sent.update(zip(missing, sizes, strict=True))
        meter = Meter(sum(sizes), stage.moved)
        missing = desk.preparation.ship(
            run, missing, functools.partial(tree.write_files, requested, meter=meter)
        )
    raise RunError(f"{desk.host} cannot keep what it is sent; is its disk sound?")
