"""Send the host the files that a launch needs and the host lacks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from rich.filesize import decimal

from launcher.base.meter import Meter
from launcher.base.text import files_text
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, ConnectionLostError, RunError, UsageError
from launcher.runs.follow.view import Stage
from launcher.transport.client.host_client import HostClient
from launcher.upload import tree
from launcher.upload.excluded_text import left_out_line
from launcher.upload.loading import Load
from launcher.upload.upload_history import UploadHistory, is_large
from launcher.values.upload_selection import UploadSelection

TRIES = 3
LARGE = 10_000_000
"""The minimum size of a sent file that the summary names, in bytes."""
MAX_LARGEST = 3


class Shipment(NamedTuple):
    """The files put in place for a run, as a manifest, and a summary of the bytes sent."""

    manifest: Mapping[str, tree.PathRecord]
    words: str


class _ChangedFileError(UsageError):
    """Raised when a file changed after it was read and before it was sent."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} changed during the upload, and again at the second try; no run was begun\n"
            "  launch again once no program writes to it, or leave it out with a line in .launchignore"
        )


def ship(
    client: HostClient, load: Load, before: UploadHistory, local_copy: LocalCopy, stage: Stage
) -> Shipment:
    """Send the files of a load to the host, and put them in place for a run.

    If a file changes before it is sent, read and send the load once more. Raises UsageError if one changes again.
    """
    try:
        try:
            manifest, sent = _put(client, load, local_copy, stage)
        except _ChangedFileError:
            load.digests.look_again()
            manifest, sent = _put(client, load, local_copy, stage)
    except ConnectionLostError as error:
        words = f"{error}\n  no run was begun; type the same command again: it sends only the files that have not arrived completely"
        raise ConnectionLostError(error.host, words) from error
    if sent or is_large(load.selection):
        before.record(manifest.values())
    left_out = left_out_line(load.selection)
    words = (
        f"{_sent(load.selection, sent)}; left out: {left_out}" if left_out else _sent(load.selection, sent)
    )
    return Shipment(manifest, words)


def _put(
    client: HostClient, load: Load, local_copy: LocalCopy, stage: Stage
) -> tuple[Mapping[str, tree.PathRecord], dict[str, int]]:
    """Read a load and send its missing files; return its manifest, and the sizes of the sent files."""
    manifest = tree.manifest(load.tree, load.digests, stage.moved)
    load.digests.save()
    return manifest, _send(client, local_copy.run, load.tree, manifest, stage)


def _sent(selection: UploadSelection, sent: dict[str, int]) -> str:
    if not sent:
        return f"{files_text(selection.files)}, {decimal(selection.bytes)}, none to send"
    largest = [f"{path} ({decimal(size)})" for path, size in selection.largest if size >= LARGE]
    named = f"; largest: {', '.join(largest[:MAX_LARGEST])}" if largest else ""
    return f"{len(sent):,} of {files_text(selection.files)} sent, {decimal(sum(sent.values()))}{named}"


def _send(
    client: HostClient,
    run: str,
    collected: tree.CodeTree,
    manifest: Mapping[str, tree.PathRecord],
    stage: Stage,
) -> dict[str, int]:
    """Offer a tree to the host and send the missing files, until the tree is in place.

    Return the sizes of the sent contents in bytes, by SHA-256.

    Raises RunError if the host requests files that were not offered, or still lacks files after several
    tries, and UsageError if a file has changed since it was read.
    """
    sent: dict[str, int] = {}
    sources: dict[str, tree.SizedFile] = {}
    missing = client.preparation.offer(run, manifest)
    for _ in range(TRIES):
        if not missing:
            return sent
        sources = sources or _sources(collected, manifest)
        try:
            requested = [sources[sha256] for sha256 in missing]
        except KeyError as error:
            raise RunError(f"{client.host} asks for a file that was not offered") from error
        sizes = [file.size for file in requested]
        sent.update(zip(missing, sizes, strict=True))
        meter = Meter(sum(sizes), stage.moved)
        try:
            missing = client.preparation.ship(
                run, missing, functools.partial(tree.write_files, requested, meter=meter)
            )
        except AgentError as error:
            changed = sources.get(str(error.values.get("sha256")))
            if error.code == "changed" and changed is not None:
                raise _ChangedFileError(changed.name) from error
            raise
    raise RunError(f"{client.host} cannot store the files that it receives; check its disk")


def _sources(collected: tree.CodeTree, manifest: Mapping[str, tree.PathRecord]) -> dict[str, tree.SizedFile]:
    """Return one source file for each content, by the content's SHA-256."""
    return {
        manifest[entry.path]["sha256"]: tree.SizedFile(
            entry.name, entry.source, int(manifest[entry.path]["size"])
        )
        for entry in collected.entries
        if entry.is_file
    }
