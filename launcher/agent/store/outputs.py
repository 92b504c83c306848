"""A run's outputs: artifacts, checkpoints, and files made or changed in its code, its home or elsewhere in work/.

The run's code is a copy of the uploaded files. A file in it is an output if it was not uploaded, or if its
contents have changed. Caches are not outputs. The job may change everything here at any moment. So no link is
followed, only regular files count, and the number of files and the depth of folders are limited. A path that
cannot be read is reported with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from ..record import strict_json
from ..record.files import read_json, write_durably
from ..record.rundir import Run
from ..record.safe_open import open_folder, open_regular, status_of
from .hidden_names import HIDDEN, HiddenNames
from .manifest import code_of, read_manifest
from .path_patterns import PathPatterns

PIECE = 1 << 20
WORTH_KEEPING = 1 << 16
"""In bytes. The digest of a smaller file is not kept.

Looking it up is no faster than reading the file, and a run may have many small files.
"""
SETTLED_NS = 2_000_000_000
"""The digest of a younger file is not kept: a second change within the file system's clock tick would be missed."""


def mark_of(status: os.stat_result) -> List[int]:
    """Return the values that change with a file: size, times of contents and of status, inode."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class OutputDigests:
    """The digests of one run's files by path, each valid while the file's mark is the same."""

    def __init__(self, run: Run, advance: Callable[[int], None] = lambda _count: None) -> None:
        """Load the digests. `advance` gets the number of bytes of each piece that is read."""
        self._file = run.digests
        self._kept: Dict[str, Any] = read_json(self._file)
        self._advance = advance
        self._has_news = False

    def known(self, path: str, mark: List[int]) -> str | None:
        """Return the digest of a file with this mark, None if it must be read."""
        entry = self._kept.get(path)
        return str(entry[-1]) if isinstance(entry, list) and entry[:-1] == mark else None

    def of(self, path: str, descriptor: int) -> str:
        """Return the digest of an open file, reading the file only if needed. Raises OSError."""
        return self.known(path, mark_of(os.fstat(descriptor))) or self.read(path, descriptor)

    def read(self, path: str, descriptor: int) -> str:
        """Read an open file and return its digest; keep the digest unless the file is too young. Raises OSError."""
        mark = mark_of(os.fstat(descriptor))
        digest, left = hashlib.sha256(), mark[0]
        while left:
            piece = os.read(descriptor, min(left, PIECE))
            if not piece:
                break
            left -= len(piece)
            digest.update(piece)
            self._advance(len(piece))
        is_settled = mark_of(os.fstat(descriptor)) == mark and time.time_ns() - max(mark[1:3]) > SETTLED_NS
        if is_settled and mark[0] >= WORTH_KEEPING:
            self._kept[path] = [*mark, digest.hexdigest()]
            self._has_news = True
        return digest.hexdigest()

    def save(self) -> None:
        """Save the new digests. If the disk refuses, only time is lost."""
        if self._has_news:
            self._has_news = False
            with contextlib.suppress(OSError):
                write_durably(self._file, strict_json.encode(self._kept), 0o600)


MAX_FILES = 200_000
MAX_FOLDER_DEPTH = 64
CACHES = {
    *("__pycache__", ".cache", ".git", ".hg", ".svn", ".triton", ".nv", ".ipynb_checkpoints"),
    *(".mypy_cache", ".ruff_cache", ".tox", ".nox", "node_modules"),
}
CACHE_TAG = "CACHEDIR.TAG"
CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
ENVIRONMENT_TAG = "pyvenv.cfg"
ARTIFACT, OUTPUT, CHECKPOINT = "artifact", "output", "checkpoint"
BESIDE = "work"
"""The first part of an output's path if it lies beside the run's standard folders.

For example, a script's `../results/model.pt` lies there.
"""
_OURS = {"artifacts", "checkpoints", "code", "data", "home", "incoming"}
_TRAINERS = re.compile(r"checkpoint-[0-9]+")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WrittenFile(NamedTuple):
    """A file that a run wrote. `path` is relative to the run's work/; `mark` changes with the file."""

    path: str
    kind: str
    mark: List[int]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.mark[0]


class OutputScan:
    """One scan of a run's outputs. `left_out` maps each path that could not be read to the reason.

    Secrets in paths are replaced, see hidden_names.py.
    """

    def __init__(self, run: Run, digests: OutputDigests, *, matches_all: bool = False) -> None:
        """Read the run's manifest and its output patterns; `matches_all` ignores the patterns."""
        self._run = run
        self._digests = digests
        self._sent = code_of(read_manifest(run.manifest))
        self._placed_ns = 0
        with contextlib.suppress(OSError):  # without a manifest nothing was sent
            self._placed_ns = status_of(run.manifest).st_ctime_ns
        patterns = run.read_plan().get("outputs")
        self._has_patterns = isinstance(patterns, list) and bool(patterns) and not matches_all
        self._patterns = PathPatterns([str(one) for one in patterns or ()] if self._has_patterns else ())
        self._count = 0
        self._names = HiddenNames(run)
        self.left_out: Dict[str, str] = {}

    def outputs(self) -> Iterator[WrittenFile]:
        """Yield the files, in the order of their paths."""
        tops = [("artifacts", self._run.artifacts), ("checkpoints", self._run.checkpoints)]
        tops += [("code", self._run.code)]
        if not self._has_patterns:
            tops += [("home", self._run.home)]
            tops += [(BESIDE, self._run.work)] if _has_own_work(self._run) else []
        for name, folder in sorted(tops):
            try:
                descriptor = open_folder(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.left_out[name] = _reason(error)
                continue
            try:
                yield from self._below(descriptor, name, 1)
            finally:
                os.close(descriptor)
        self.left_out = {self._names.shown(path): why for path, why in self.left_out.items()}
        self._names.save()

    def _below(self, descriptor: int, path: str, depth: int) -> Iterator[WrittenFile]:
        """Yield the outputs in an open folder and its subfolders."""
        try:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in _entries(descriptor)]
        except OSError as error:
            self.left_out[path] = _reason(error)
            return
        if depth > 1 and _may_be_cache(path) and _is_cache(descriptor, {name for name, _ in entries}):
            return
        for name, status in sorted(entries, key=lambda entry: entry[0]):
            if path == BESIDE and name in _OURS:
                continue
            inner = "%s/%s" % (path, name)
            if not is_utf8(inner):
                self.left_out[inner.encode("utf-8", "backslashreplace").decode()] = "its name is not UTF-8"
                continue
            if stat.S_ISDIR(status.st_mode):
                yield from self._folder(descriptor, name, inner, depth)
            elif stat.S_ISREG(status.st_mode):
                yield from self._file(descriptor, name, inner, status)

    def _folder(self, parent: int, name: str, path: str, depth: int) -> Iterator[WrittenFile]:
        if name in CACHES and _may_be_cache(path):
            return
        if depth >= MAX_FOLDER_DEPTH:
            self.left_out[path] = "more than %d folders deep" % MAX_FOLDER_DEPTH
            return
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            self.left_out[path] = _reason(error)
            return
        try:
            yield from self._below(descriptor, path, depth + 1)
        finally:
            os.close(descriptor)

    def _file(self, parent: int, name: str, path: str, status: os.stat_result) -> Iterator[WrittenFile]:
        kind = self._kind(path)
        if kind is None:
            return
        if self._count >= MAX_FILES:
            self.left_out[path.partition("/")[0]] = "more than %d files" % MAX_FILES
            return
        try:
            if path.startswith("code/") and not self._is_changed(parent, name, path, status):
                return
        except OSError as error:
            self.left_out[path] = _reason(error)
            return
        self._count += 1
        yield WrittenFile(self._names.shown(path), kind, mark_of(status))

    def _kind(self, path: str) -> str | None:
        """Return the kind of a file, None if the job's patterns exclude it."""
        top, _, rest = path.partition("/")
        if top == "artifacts":
            return ARTIFACT
        if top == "checkpoints" or any(map(_TRAINERS.fullmatch, rest.split("/")[:-1])):
            return CHECKPOINT
        return OUTPUT if top in ("home", BESIDE) or self._patterns.match(rest) else None

    def _is_changed(self, parent: int, name: str, path: str, status: os.stat_result) -> bool:
        """Whether a file of the code differs from the uploaded one.

        The file is read only if its times and size do not decide this.
        """
        sent = self._sent.get(path[len("code/") :])
        if sent is None or "sha256" not in sent or sent.get("size") != status.st_size:
            return True
        if status.st_ctime_ns < self._placed_ns:
            return False
        known = self._digests.known(path, mark_of(status))
        if known is not None:
            return known != str(sent["sha256"])
        descriptor = os.open(name, _FILE, dir_fd=parent)
        try:
            return self._digests.read(path, descriptor) != str(sent["sha256"])
        finally:
            os.close(descriptor)


def is_utf8(path: str) -> bool:
    """Whether a path is text: a byte that is not UTF-8 is a lone surrogate in it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_output(run: Run, path: str) -> Tuple[int, os.stat_result]:
    """Open a regular file in a run's work/, through no link; return descriptor and status. Raises OSError."""
    if HIDDEN in path:
        path = HiddenNames(run).real(path)
    *folders, name = path.split("/")
    if folders[:1] == [BESIDE] and _has_own_work(run):
        folders = folders[1:]
        is_written = (*folders, name)[0] not in _OURS
    else:
        is_written = folders[:1] in (["artifacts"], ["checkpoints"], ["code"], ["home"])
    if not is_written or ".." in (*folders, name):
        raise FileNotFoundError(2, "not a file that a run writes", path)
    descriptor = open_regular(run.work.below(*folders, name), os.O_RDONLY)
    return descriptor, os.fstat(descriptor)


def _has_own_work(run: Run) -> bool:
    """Whether the job's files have a separate folder. False for runs from before 2026-11-22."""
    return run.work != run.path


def _may_be_cache(path: str) -> bool:
    """Whether programs may leave caches in a folder: not in artifacts/ and checkpoints/."""
    return path.startswith(("code/", "home/", BESIDE + "/"))


def _entries(descriptor: int) -> Iterator[Any]:
    """Yield the entries of an open folder."""
    with os.scandir(descriptor) as entries:
        yield from entries


def is_cache_folder(path: str) -> bool:
    """Whether a folder is tagged as a cache or is a virtual environment; False if it cannot be opened."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:
        return False
    try:
        return _is_cache(descriptor, set(os.listdir(descriptor)))
    finally:
        os.close(descriptor)


def _is_cache(descriptor: int, names: set[str]) -> bool:
    """Whether an open folder is tagged as a cache or is a virtual environment."""
    if ENVIRONMENT_TAG in names:
        return True
    if CACHE_TAG not in names:
        return False
    try:
        tag = os.open(CACHE_TAG, _FILE, dir_fd=descriptor)
    except OSError:
        return False
    try:
        return os.read(tag, len(CACHE_SIGNATURE)) == CACHE_SIGNATURE
    except OSError:
        return False
    finally:
        os.close(tag)


def _reason(error: OSError) -> str:
    return str(error.strerror or error)
