"""Copy a file or folder of a run to a place of the user's choice, as `cp -r` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from launcher.copy.local_copy import LocalCopy
from launcher.errors import RunError, UsageError
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import PIECE, LocalCopies, sync_folders
from launcher.runs.pull.pulling import named_by
from launcher.runs.pull.transfer import Transfer, until_stable
from launcher.transport.client.host_client import HostClient
from launcher.values.reported.output import Content, RunOutput


class Copied(NamedTuple):
    """The number of copied files, their bytes, and the place of the file or folder."""

    files: int
    bytes: int
    place: Path


def copy(
    client: HostClient,
    local_copy: LocalCopy,
    path: str,
    destination: str,
    may_replace: Callable[[Sequence[Path]], bool],
    open_stage: Callable[[], AbstractContextManager[Stage]],
) -> Copied:
    """Copy a file or folder of a run to a destination here, verified; `may_replace` decides whether existing files are replaced.

    If the destination is a folder, or ends with a slash, the file or folder is copied into it. Raises
    UsageError if it cannot be written there, and RunError if the run wrote no file of that name.
    """
    listed = client.runs.outputs(local_copy.run, lambda _count: None, every_file=True)
    files = named_by(path, listed.files, local_copy.short)
    top, places = _free_places(files, local_copy, path, destination, may_replace)
    with local_copy.alone("pull"), local_copy.disk_errors(top), open_stage() as stage:
        copies = LocalCopies(local_copy)
        transfer = Transfer(client, local_copy, copies, stage)
        until_stable(
            lambda: _fetch(transfer, copies, local_copy, files, places),
            f"launch cp {local_copy.short}:{path} {destination}",
        )
        sync_folders(places.values(), top.parent)
    return Copied(len(files), sum(file.size for file in files), top)


def copy_from_here(
    local_copy: LocalCopy, path: str, destination: str, may_replace: Callable[[Sequence[Path]], bool]
) -> Copied:
    """Copy downloaded files of a run without asking its host.

    Raises the errors of `copy`, and RunError if the files are not here.
    """
    files = named_by(path, LocalCopies(local_copy).outputs(), local_copy.short)
    top, places = _free_places(files, local_copy, path, destination, may_replace)
    with local_copy.disk_errors(top):
        for file in files:
            _copy_whole(local_copy, local_copy.place(file.path), places[file.path])
        sync_folders(places.values(), top.parent)
    return Copied(len(files), sum(file.size for file in files), top)


def are_here(local_copy: LocalCopy, paths: Sequence[str]) -> bool:
    """Return whether each of these paths has downloaded files here."""
    files = LocalCopies(local_copy).outputs()
    try:
        return all(named_by(path, files, local_copy.short) for path in paths)
    except RunError:
        return False


def _free_places(
    files: Sequence[RunOutput],
    local_copy: LocalCopy,
    path: str,
    destination: str,
    may_replace: Callable[[Sequence[Path]], bool],
) -> tuple[Path, dict[str, Path]]:
    """Return the places of files, like `_places`.

    Raises UsageError if a file exists there and may not be replaced.
    """
    top, places = _places(files, path, destination)
    existing = [place for place in places.values() if os.path.lexists(place)]
    if existing and not may_replace(existing):
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        again = f"launch cp --force {local_copy.short}:{path} {destination}"
        raise UsageError(f"{existing[0]}{more} exists\n  replace   {again}")
    return top, places


def _fetch(
    transfer: Transfer,
    copies: LocalCopies,
    local_copy: LocalCopy,
    files: Sequence[RunOutput],
    places: dict[str, Path],
) -> None:
    manifest = transfer.digests(files)
    if manifest.left_out:
        path, why = min(manifest.left_out.items())
        raise RunError(f"{path} cannot be read on its host: {why}")
    here = [content for content in manifest.files if copies.has(content)]
    for content in here:
        _copy_whole(local_copy, local_copy.place(content.path), places[content.path])
    others = [content for content in manifest.files if content not in here]
    transfer.fetch(others, lambda content, part: _put(local_copy, content, part, places))


def _put(local_copy: LocalCopy, content: Content, part: Path, places: dict[str, Path]) -> None:
    _copy_whole(local_copy, part, places[content.path])  # the destination may be on another disk
    local_copy.files.remove(part)


def _copy_whole(local_copy: LocalCopy, source: Path, place: Path) -> None:
    """Copy a file of a run atomically: at any moment its place has the whole old file or the whole new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    hidden = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with local_copy.files.open(source) as file, hidden.open("wb") as copy:
            shutil.copyfileobj(file, copy, PIECE)
            copy.flush()
            os.fsync(copy.fileno())
        hidden.replace(place)
    finally:
        hidden.unlink(missing_ok=True)


def _places(files: Sequence[RunOutput], path: str, destination: str) -> tuple[Path, dict[str, Path]]:
    """Return the place of the file or folder, and each file's place by its path. Raises UsageError."""
    target, name = Path(destination), os.path.basename(os.path.normpath(path))
    folder = _folder_of(files, path)
    into = target.is_dir() or destination.endswith("/")
    if folder is None:
        top = target / name if into else target
        if top.is_dir():
            raise UsageError(f"{top} is a folder   name a file")
        if not into and not top.parent.is_dir():
            raise UsageError(f"{top.parent} is not a folder\n  make it   mkdir -p {top.parent}")
        return top, {files[0].path: top}
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file, and {path} is a folder")
    top = target / name if into and name not in (".", "..") else target
    return top, {file.path: top / file.path[len(folder) + 1 :] for file in files}


def _folder_of(files: Sequence[RunOutput], path: str) -> str | None:
    """Return the host's path of the folder that the user named; None if the user named one file."""
    plain = os.path.normpath(path).removeprefix("/")
    if len(files) == 1 and (files[0].path == plain or files[0].path == f"code/{plain}"):
        return None
    if plain == ".":
        return "code"
    return (
        plain
        if files[0].path.startswith(f"{plain}/") and not files[0].path.startswith(f"code/{plain}/")
        else f"code/{plain}"
    )
