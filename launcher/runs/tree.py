"""The files that are sent with a run, and the manifest that the host checks them against."""

from __future__ import annotations

import functools
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from launcher.errors import UsageError
from launcher.runs.digests import Digests
from launcher.runs.meter import Meter, Moved

CHUNK = 1 << 17
"""Bytes sent at once: small enough to show progress on a slow link."""
MOST_FILES = 50_000


class Entry(NamedTuple):
    """A file (or link) here, and its path on the host below the run: `code/…` or `data/…`."""

    path: str
    source: str
    link: str | None

    @property
    def name(self) -> str:
        """The path as it is shown: below the code folder, or `data/…`."""
        return self.path.removeprefix("code/")


class SizedFile(NamedTuple):
    """A file to send: its name to show, where it lies here, and its size in bytes when it was hashed."""

    name: str
    source: str
    size: int


class CodeTree(NamedTuple):
    """All entries, and what was left out and why."""

    entries: list[Entry]
    left_out: list[str]


def collect(code: Path, local: Mapping[str, Path], mirror: Path) -> CodeTree:
    """Return what a plan ships: the code folder, and the model and data that lie here, by their keys in the job.

    In a git work tree: tracked files and untracked ones that git does not ignore. Elsewhere: every file. Never the
    mirror of our own runs. Raises UsageError for what cannot be read.
    """
    left_out: list[str] = []
    entries = list(_folder(code, "code", mirror, left_out))
    for key, written in local.items():
        path = Path(os.path.realpath(written))
        name = path.name if written.name in ("", "..") else written.name
        top = f"data/{key.rpartition('.')[2]}/{name or 'root'}"
        if path.is_dir():
            entries += _folder(path, top, mirror, left_out, use_git=False)
        elif path.is_file():
            entries.append(Entry(top, str(path), None))
        else:
            raise UsageError(f"{key}: {path} does not exist\n  a path on the host is written host:/path")
    if len(entries) > MOST_FILES:
        raise UsageError(
            f"{code} holds {len(entries):,} files, more than {MOST_FILES:,}: is this the project's folder?\n"
            '  stand in it, or name it: code = "…" in the job file; what git ignores stays behind'
        )
    return CodeTree(sorted(entries, key=lambda entry: entry.path), left_out)


def manifest(tree: CodeTree, digests: Digests, show: Callable[[Moved], None]) -> dict[str, Any]:
    """Return what each path must be on the host: SHA-256, size in bytes and exec bit, or a link's target.

    Files that changed are read, in a second pass: `show` learns how far that has come. Raises UsageError for one that cannot
    be read.
    """
    found: dict[str, Any] = {}
    unread: list[Entry] = []
    for entry in tree.entries:
        if entry.link is not None:
            found[entry.path] = {"link": entry.link}
            continue
        try:
            digest, status = digests.known(entry.source)
        except OSError as error:
            raise _unreadable(entry.source, error) from error
        found[entry.path] = _file(digest, status)
        if digest is None:
            unread.append(entry)
    meter = Meter(sum(found[entry.path]["size"] for entry in unread), show, doing="reading")
    for entry in unread:
        try:
            digest, status = digests.read(entry.source, functools.partial(meter.advance, name=entry.name))
        except OSError as error:
            raise _unreadable(entry.source, error) from error
        found[entry.path] = _file(digest, status)
    return found


def _file(digest: str | None, status: os.stat_result) -> dict[str, Any]:
    return {"sha256": digest, "size": status.st_size, "exec": bool(status.st_mode & stat.S_IXUSR)}


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be read: {error.strerror}")


def write_files(sources: Sequence[SizedFile], sink: IO[bytes], meter: Meter) -> None:
    """Write files one behind the other, each as long as it was (in bytes) when it was hashed.

    A file that changes meanwhile is caught by its hash on the host; one that shrinks or vanishes raises UsageError.
    """
    waiting = bytearray()
    for file in sources:
        for piece in _pieces(file.source, file.size):
            waiting += piece
            if len(waiting) >= CHUNK:
                sink.write(bytes(waiting))
                waiting.clear()
            meter.advance(len(piece), file.name)
    if waiting:
        sink.write(bytes(waiting))


def _pieces(path: str, left: int) -> Iterator[bytes]:
    """Yield `left` bytes of a file. Separate from the sink, whose OSError must not be reported as the file's."""
    try:
        with open(path, "rb") as file:
            while left:
                piece = file.read(min(left, CHUNK))
                if not piece:
                    raise UsageError(f"{path} shrank while it was being sent: launch again")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise _unreadable(path, error) from error


def _folder(
    folder: Path, top: str, mirror: Path, left_out: list[str], *, use_git: bool = True
) -> Iterator[Entry]:
    names = _git_names(folder) if use_git else None
    base = f"{folder}{os.sep}"  # text all the way: a Path for each of 10,000 files costs more than asking the disk
    runs = f"{mirror}{os.sep}" if mirror != folder and mirror.is_relative_to(folder) else None
    linked: dict[str, bool] = {"": False}
    for name in _all_names(folder) if names is None else names:
        path = base + name
        if runs is not None and path.startswith(runs):
            continue
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked, and gone from the work tree
        if _is_behind_a_link(os.path.dirname(name), base, linked):
            continue  # tracked, and a parent has become a link, which travels as one
        if stat.S_ISLNK(mode):
            link = _link_inside(Path(path), folder)
            if link is None:
                left_out.append(f"{name} -> {os.readlink(path)} (points out of the folder)")
            else:
                yield Entry(f"{top}/{name}", path, link)
        elif stat.S_ISREG(mode):
            yield Entry(f"{top}/{name}", path, None)
        elif stat.S_ISDIR(mode):  # a submodule, perhaps never checked out, or a repository in this one
            has_git = os.path.exists(f"{path}/.git")
            yield from _folder(Path(path), f"{top}/{name}", mirror, left_out, use_git=has_git)
        else:
            left_out.append(f"{name} (no file)")


def _is_behind_a_link(parent: str, base: str, known: dict[str, bool]) -> bool:
    if parent not in known:
        known[parent] = os.path.islink(base + parent) or _is_behind_a_link(
            os.path.dirname(parent), base, known
        )
    return known[parent]


def _git_names(folder: Path) -> list[str] | None:
    """Return git's tracked and unignored names below a folder; None to send every file.

    Every file is sent if the folder is not a work tree, if git is missing, or if git ignores the whole folder: naming it is
    a request for it. Raises UsageError if git fails in a work tree: ignored files would be sent.
    """
    try:
        said = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except FileNotFoundError:
        return None
    if said.returncode != 0:
        words = said.stderr.decode(errors="replace").strip()
        if "not a git repository" in words:
            return None
        raise UsageError(f"git does not list {folder}: {words}")
    is_top = (folder / ".git").exists()  # its own ignore rules do not cover the folder itself
    if not is_top and _git(folder, "check-ignore", "-q", "--", str(folder)).returncode == 0:
        return None
    return sorted({os.fsdecode(name).rstrip("/") for name in said.stdout.split(b"\0") if name})


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


def _all_names(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        folders[:] = sorted(set(folders) - set(links) - {".git", "__pycache__"})
        for name in sorted({*files, *links} - {".git"}):  # in a submodule it is a file
            yield os.path.join(where, name)[len(str(folder)) + 1 :]


def _link_inside(path: Path, folder: Path) -> str | None:
    """Return a link's target as it is to be made on the host, None if it points out of the folder."""
    target = path.readlink()
    real = Path(os.path.realpath(path.parent / target))
    if not real.is_relative_to(folder.resolve()):
        return None
    if target.is_absolute():
        plain = Path(os.path.normpath(target))
        return os.path.relpath(plain if plain.is_relative_to(folder) else real, path.parent.resolve())
    return str(target)
