"""Remove from a segment's outputs all that must not or need not be kept: secrets, tokens, sent files, caches.

The run's own output stays: the numbered folders of this segment, artifacts, checkpoints, new and changed
files.
"""

from __future__ import annotations

import contextlib
import os
import stat

from ..record import secret
from ..record.files import paths_in, remove_folder
from ..record.frame import GROWING_FILES, SMALL_FILES
from ..record.rundir import Run
from ..record.safe_open import UnreadableError
from ..store import checkpoints, outputs
from ..store.manifest import FileTree, code_of, read_manifest

_KEPT_WHOLE = ("artifacts", "checkpoints")
_NOT_WRITTEN = ("data", "incoming")


def prune(run: Run, after: int) -> None:
    """Remove all but the outputs of a run whose processes have ended.

    `after` is the last folder that came with the payload. Files that cannot be removed stay, but an error
    about the secrets is raised at the end: OSError.
    """
    sent = FileTree()
    with contextlib.suppress(UnreadableError):
        sent = code_of(read_manifest(run.manifest))
    for path in paths_in(run.root):
        if os.path.basename(path) != "runs":
            _remove(path)
    _remove(run.control)
    _prune_record(run, after)
    for path in paths_in(run.work):
        name = os.path.basename(path)
        if name in _NOT_WRITTEN:
            _remove(path)
        elif name not in _KEPT_WHOLE:
            _prune_folder(path, sent if name == "code" else FileTree(), "")
    _make_names_text(run.work)
    secret.erase(run)


def _prune_record(run: Run, after: int) -> None:
    kept = {"%04d" % number for number in run.numbers() if number > after}
    with contextlib.suppress(OSError):
        secret.erase(run)  # first of all; an error is raised at the end
    for path in paths_in(run.record):
        if os.path.basename(path) not in kept:
            _remove(path)
            continue
        for inner in paths_in(path):
            if os.path.basename(inner) not in (*SMALL_FILES, *GROWING_FILES):
                _remove(inner)


def _prune_folder(path: str, sent: FileTree, inside: str) -> None:
    """Remove caches, links and unchanged sent files, and then empty folders."""
    for folder, names, files in os.walk(path, topdown=True):
        below = os.path.normpath(os.path.join(inside, os.path.relpath(folder, path)))
        for name in list(names):
            inner = os.path.join(folder, name)
            if os.path.islink(inner) or name in outputs.CACHES or outputs.is_cache_folder(inner):
                _remove(inner)
                names.remove(name)
        for name in files:
            if not _is_written(os.path.join(folder, name), sent, os.path.normpath(os.path.join(below, name))):
                _remove(os.path.join(folder, name))
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(folder)


def _make_names_text(top: str) -> None:
    """Rename files and folders whose names are not UTF-8.

    Because of one such name, a service that lists its outputs as text could list none of them.
    """
    for folder, names, files in os.walk(top, topdown=False):
        for name in (*names, *files):
            text = os.fsencode(name).decode("utf-8", "backslashreplace")
            if text != name and not os.path.lexists(os.path.join(folder, text)):
                with contextlib.suppress(OSError):
                    os.rename(os.path.join(folder, name), os.path.join(folder, text))


def _is_written(path: str, sent: FileTree, name: str) -> bool:
    """Whether a path is a regular file whose contents differ from the sent ones."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return False
        entry = sent.get(name, {})
        if entry.get("size") != status.st_size:
            return True
        return checkpoints.sha256_of(path) != entry.get("sha256")
    except OSError:
        return True


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            remove_folder(path)
        else:
            os.unlink(path)
