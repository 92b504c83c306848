"""What git ignores in a folder."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

from launcher.errors import UsageError

_BINDING = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE"}
_LIST = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")


def ignored_by_git(folder: Path) -> frozenset[str] | None:
    """Return the files and folders below a folder that git ignores; folders end with `/`, what is in them is not listed.

    None if git has no say: the folder is not in a work tree, git is missing, or git ignores the whole folder, for naming it
    is a request for it. Raises UsageError if git fails in a work tree: ignored files would be sent.
    """
    try:
        listing = _git(folder, *_LIST)
        asking = _git(folder, "check-ignore", "-q", "--", str(folder))
    except FileNotFoundError:
        return None
    names, errors = listing.communicate()
    asking.communicate()
    is_top = (folder / ".git").exists()  # its own ignore rules do not cover the folder itself
    if not is_top and asking.returncode == 0:
        return None
    if listing.returncode != 0:
        words = errors.decode(errors="replace").strip()
        if "not a git repository" in words and not _is_in_repository(folder):
            return None
        mend = "what it ignores would be sent: repair the repository, or remove its .git"
        raise UsageError(f"git does not list {folder}: {words}\n  {mend}")
    return frozenset(_without_parents(sorted(map(os.fsdecode, filter(None, names.split(b"\0"))))))


def _is_in_repository(folder: Path) -> bool:
    """Whether a `.git` is here or above: if git then knows no repository, that is broken, as after its main one has moved."""
    return any((above / ".git").is_file() for above in (folder, *folder.parents))


def _without_parents(names: list[str]) -> list[str]:
    """Leave out folders of which git lists the contents too: a rule speaks of those, not of the folder."""
    return [
        name
        for name, following in pairwise([*names, ""])
        if name != "./" and not (name.endswith("/") and following.startswith(name))
    ]


def _environment() -> dict[str, str]:
    """Return the variables without those by which a hook, or an alias of git, is bound to another repository."""
    return {name: value for name, value in os.environ.items() if name not in _BINDING}


def _git(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", "-C", str(folder), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**_environment(), "LC_ALL": "C"},
    )
