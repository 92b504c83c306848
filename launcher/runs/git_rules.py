"""What git ignores in a folder."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

from launcher.errors import UsageError

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
        if "not a git repository" in words:
            return None
        raise UsageError(f"git does not list {folder}: {words}")
    return frozenset(_without_parents(sorted(map(os.fsdecode, filter(None, names.split(b"\0"))))))


def _without_parents(names: list[str]) -> list[str]:
    """Leave out folders of which git lists the contents too: a rule speaks of those, not of the folder."""
    return [
        name
        for name, following in pairwise([*names, ""])
        if name != "./" and not (name.endswith("/") and following.startswith(name))
    ]


def _git(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", "-C", str(folder), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
