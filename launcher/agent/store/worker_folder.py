"""The folder for PYTHONPATH that lets a training `import launcher_worker`.

The package is sent inside the agent's file and is unpacked beside it, into a folder named by its content:

    agent/<digest16>/agent.pyz
    agent/<digest16>/worker-<digest16>/launcher_worker/__init__.py ...

It is written into a temporary folder and renamed, so that a half-unpacked package is never used and two
agents can unpack at once. The cheap check compares file sizes. Contents are compared only before a run
starts, because reading the whole package would make every `launch ps` wait for the disk; an interrupted write
never leaves a damaged file of the right size. A container sees the folder too: the agent's folder is mounted
there at the same path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import zipimport
from typing import Dict, NamedTuple

from ..record import strict_json
from ..record.files import paths_in, sync_folder

CONTENT = "launcher_worker.json"
"""A file in the agent's archive: the folder's name, and the names and sizes of its files."""
HOOK = "launcher_worker/startup"
TEMPORARY = ".worker-"
ATTEMPTS = 5  # more than two are needed only if other agents unpack at the same time
LEFTOVER_S = 3600.0  # a temporary folder this old belongs to an agent that was killed


def path_of(agent: str) -> str:
    """Return an agent's folder for PYTHONPATH, unpacked or not."""
    return _content(agent).path


def hook_of(agent: str) -> str:
    """Return the folder for PYTHONPATH with the start-up hook, unpacked or not."""
    return os.path.join(path_of(agent), HOOK)


def ensure(agent: str) -> None:
    """Unpack the worker beside an agent's file, unless all files exist with their sizes. Raises OSError."""
    content = _content(agent)
    if not _looks_complete(content.path, content.sizes):
        unpack(agent)


def unpack(agent: str) -> str:
    """Unpack the worker beside an agent's file, unless all files are intact; return the PYTHONPATH folder.

    Raises OSError if the disk refuses.
    """
    import tempfile  # imported here: rarely needed, and slow for each contact

    content = _content(agent)
    path, parent = content.path, os.path.dirname(content.path)
    members = _members(agent, content)
    _sweep(parent)
    if _is_complete(path, members):
        return path
    temporary = tempfile.mkdtemp(prefix=TEMPORARY, dir=parent)
    try:
        new = os.path.join(temporary, "new")
        _write(new, members)
        _publish(new, path, members)
        sync_folder(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


class _Content(NamedTuple):
    """The folder's path, and the size of each file by its name in the folder."""

    path: str
    sizes: Dict[str, int]


def _content(agent: str) -> _Content:
    values = strict_json.decode(zipimport.zipimporter(agent).get_data(os.path.join(agent, CONTENT)))
    return _Content(os.path.join(os.path.dirname(os.path.abspath(agent)), values["folder"]), values["sizes"])


def _members(agent: str, content: _Content) -> dict[str, bytes]:
    """Return the package's files by their names in the folder."""
    archive = zipimport.zipimporter(agent)
    return {name: archive.get_data(os.path.join(agent, *name.split("/"))) for name in content.sizes}


def _looks_complete(path: str, sizes: dict[str, int]) -> bool:
    """Return whether every file of the package exists as a regular file of the right size."""
    try:
        for name, size in sizes.items():
            status = os.lstat(os.path.join(path, name))
            if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                return False
    except OSError:
        return False
    return True


def _is_complete(path: str, members: dict[str, bytes]) -> bool:
    """Return whether every file of the package exists with the right content."""
    if not _looks_complete(path, {name: len(data) for name, data in members.items()}):
        return False
    try:
        for name, data in members.items():
            with open(os.path.join(path, name), "rb") as file:
                if file.read() != data:
                    return False
    except OSError:  # unreadable files are written again
        return False
    return True


def _write(folder: str, members: dict[str, bytes]) -> None:
    """Write the package into a new folder, durably."""
    folders = {folder}
    for name, data in members.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        folders.update((os.path.dirname(path), os.path.dirname(os.path.dirname(path))))
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    for inner in folders:
        sync_folder(inner)


def _publish(new: str, path: str, members: dict[str, bytes]) -> None:
    """Give the new folder its final name; move a damaged one away, but keep another agent's complete one."""
    for attempt in range(ATTEMPTS):
        try:
            os.rename(new, path)
            return
        except OSError as error:
            is_taken = error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
            if not is_taken or attempt == ATTEMPTS - 1:
                raise
        if _is_complete(path, members):
            return
        with contextlib.suppress(FileNotFoundError):  # another agent has moved it away
            os.rename(path, "%s.damaged.%d" % (new, attempt))


def _sweep(parent: str) -> None:
    """Remove the temporary folders of agents that were killed while unpacking."""
    for path in paths_in(parent):
        if os.path.basename(path).startswith(TEMPORARY):
            with contextlib.suppress(FileNotFoundError):  # its agent has finished
                if time.time() - os.stat(path).st_mtime > LEFTOVER_S:
                    shutil.rmtree(path, ignore_errors=True)
