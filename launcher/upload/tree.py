"""The files that are sent with a run, and the manifest that the host checks them against."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, TypedDict

from launcher.base.client_files import open_regular
from launcher.base.meter import Meter, Moved
from launcher.errors import UsageError
from launcher.upload.digests import Digests, Looked
from launcher.upload.folder_walk import FolderWalk, WalkedFile
from launcher.upload.git_rules import sent_commit
from launcher.upload.launch_ignore import rules_for
from launcher.values.plan import Commit
from launcher.values.upload_selection import ExcludedPath, ExclusionReason

CHUNK = 1 << 17
"""The bytes written at once: few enough to show progress on a slow link."""


class SizedFile(NamedTuple):
    """A file to send: its displayed name, its local path, and its size in bytes when it was hashed."""

    name: str
    source: str
    size: int


class CodeTree(NamedTuple):
    """All entries by path, the exclusions with reasons, the credentials that a rule includes by name, and the code's commit."""

    entries: list[WalkedFile]
    left_out: list[ExcludedPath]
    included: tuple[ExcludedPath, ...] = ()
    commit: Commit | None = None


def collect(
    code: Path, local: Mapping[str, Path], hidden: Mapping[str, ExclusionReason], digests: Digests
) -> CodeTree:
    """Return the upload: the code folder, and the local model and data, by their keys in the job.

    `hidden` are absolute paths to exclude. The paths of `local` themselves are never excluded: `named_paths`
    has checked them. Raises UsageError for an unreadable file.
    """
    walk = FolderWalk(code, "code", None, rules_for(code, code), hidden, digests)
    walk.run(use_git=True)
    entries, left_out, included = walk.entries, walk.left_out, walk.included
    for key, written in local.items():
        path = Path(os.path.realpath(written))
        name = path.name if written.name in ("", "..") else written.name
        top = f"data/{key.rpartition('.')[2]}/{name or 'root'}"
        if path.is_dir():
            walk = FolderWalk(path, top, key, rules_for(path, code), hidden, digests)
            walk.run(use_git=False)
            entries += walk.entries
            left_out += walk.left_out
            included += walk.included
        else:
            entries.append(_named_file(top, str(path)))
    return CodeTree(
        sorted(entries, key=lambda entry: entry.path), left_out, tuple(included), sent_commit(code)
    )


def _named_file(top: str, path: str) -> WalkedFile:
    try:
        return WalkedFile(top, path, size=os.stat(path).st_size)
    except OSError as error:
        raise _unreadable(path, error) from error


class PathRecord(TypedDict, total=False):
    """The required state of a path on the host.

    A file has its SHA-256 (empty until it is read), size and mode; a link its target; an empty folder its
    mode.
    """

    sha256: str
    size: int
    mode: int
    link: str
    folder: int


def manifest(tree: CodeTree, digests: Digests, show: Callable[[Moved], None]) -> dict[str, PathRecord]:
    """Return the required state of each path on the host.

    Changed files are read in a second pass; `show` receives its progress. Raises UsageError for an unreadable
    file.
    """
    found: dict[str, PathRecord] = {}
    unread: list[WalkedFile] = []
    for entry in tree.entries:
        path, source, link, folder, _ = entry
        if link is not None:
            found[path] = {"link": link}
        elif folder is not None:
            found[path] = {"folder": folder}
        else:
            looked = digests.lately(source) or _look(source, digests)
            found[path] = _file(looked)
            if looked.sha256 is None:
                unread.append(entry)
    meter = Meter(sum(found[entry.path]["size"] for entry in unread), show, doing="reading")
    for entry in unread:
        try:
            known, status = digests.read(entry.source, functools.partial(meter.advance, name=entry.name))
        except OSError as error:
            raise _unreadable(entry.source, error) from error
        found[entry.path] = _file(Looked(known.sha256, status.st_size, status.st_mode & 0o777))
    return found


def _file(looked: Looked) -> PathRecord:
    # Three times as fast as _asdict().
    return {"sha256": looked.sha256 or "", "size": looked.size, "mode": looked.mode}


def _look(path: str, digests: Digests) -> Looked:
    """Return a file's data, without a digest if the file must be read. Raises UsageError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    known = digests.known(path, status)
    return Looked(known.sha256 if known is not None else None, status.st_size, status.st_mode & 0o777)


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be read: {error.strerror}")


def write_files(sources: Sequence[SizedFile], sink: IO[bytes], meter: Meter) -> None:
    """Write the content of each file in turn, up to the size that it had when it was hashed.

    The host's hash reveals a file that has changed since. Raises UsageError if a file has shrunk or vanished.
    """
    waiting: list[bytes] = []
    size = 0
    for file in sources:
        for piece in _pieces(file.source, file.size):
            waiting.append(piece)
            size += len(piece)
            if size >= CHUNK:
                sink.write(b"".join(waiting))
                waiting.clear()
                size = 0
            meter.advance(len(piece), file.name)
    if waiting:
        sink.write(b"".join(waiting))


def _pieces(path: str, left: int) -> Iterator[bytes]:
    """Yield `left` bytes of a file.

    A separate function, so that only errors of the file are caught, and not those of the sink.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            while left:
                piece = file.read(min(left, CHUNK))
                if not piece:
                    raise UsageError(f"{path} shrank while it was being sent: launch again")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise _unreadable(path, error) from error
