"""Git's information about a folder: the ignored files, and the current commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

from launcher.errors import UsageError
from launcher.values.plan import Commit

_BINDING = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
}
_SETTINGS = {"core.fsmonitor": "", "core.hooksPath": os.devnull, "safe.bareRepository": "explicit"}
"""These settings stop git from running the programs that an untrusted repository's settings name.

The empty value disables `core.fsmonitor` in every version of git.
"""
_VARIABLES = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    # To fetch a missing object, git would run a program that the repository's settings name.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
ANSWER_S = 10.0
_BOUNDED = 'ulimit -v 2097152 2>/dev/null; exec "$@"'
"""A memory limit, since git holds a whole .gitignore in memory. macOS has no such limit."""
_FILTERS = r"^filter\..*\.(clean|process|required)$"
_TRACKED_ONLY = ("--untracked-files=no", "--ignore-submodules=all", "--no-renames")
_LIST = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")


def ignored_by_git(folder: Path) -> frozenset[str] | None:
    """Return the paths below a folder that git ignores.

    Folders end with `/`, and their contents are not listed. None if git does not apply: the folder is not in
    a work tree, git is missing, or git ignores the whole folder, which the user named on purpose. Raises
    UsageError if git fails in a work tree, or does not answer within ANSWER_S: without its answer, ignored
    files would be sent.
    """
    _refuse_bare(folder)
    if shutil.which("git") is None:
        return None
    listing = _git(folder, *_LIST)
    asking = _git(folder, "check-ignore", "-q", "--", str(folder))
    try:
        names, errors = listing.communicate(timeout=ANSWER_S)
        asking.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        mend = "is a .gitignore there a pipe, or very large?   git -C FOLDER status --ignored"
        raise UsageError(f"git did not list {folder} within {ANSWER_S:g} s\n  {mend}") from None
    finally:
        for process in (listing, asking):
            process.kill()  # no effect on a process that has ended
            process.communicate()
    is_top = (folder / ".git").exists()  # a work tree's ignore rules do not cover its top folder
    if not is_top and asking.returncode == 0:
        return None
    if listing.returncode != 0:
        words = errors.decode(errors="replace").strip() or f"exit {listing.returncode}"
        if "not a git repository" in words and _top_of(folder) is None:
            return None
        mend = "files that it ignores would be sent: repair the repository, or remove its .git"
        raise UsageError(f"git does not list {folder}: {words}\n  {mend}")
    return frozenset(_without_parents(sorted(map(os.fsdecode, filter(None, names.split(b"\0"))))))


def commit_of(folder: Path) -> str | None:
    """Return the first 12 digits of the current commit of a folder with a `.git`, or None if git fails.

    The folder is launcher's own checkout, and may belong to another user, e.g. on a shared computer.
    """
    if shutil.which("git") is None:
        return None
    said = _said(folder, "rev-parse", "--short=12", "HEAD", may_be_anothers=True)
    return said.strip() if said is not None else None


def sent_commit(folder: Path) -> Commit | None:
    """Return the commit of a folder that is sent, and whether a tracked file in it differs from the commit.

    None if there is no such commit: no git, no repository, nothing of the folder in it, or a repository that
    git does not read within ANSWER_S. No program that the repository names is run. Its filters are emptied, so
    a file of git-lfs that was touched since its checkout counts as changed.
    """
    if shutil.which("git") is None or _top_of(folder) is None:
        return None
    filters = _said(folder, "config", "--null", "--name-only", "--get-regexp", _FILTERS)
    named = _said(
        folder, "rev-parse", "--quiet", "HEAD^{commit}", "HEAD:./"
    )  # fails without the folder's tree
    if filters is None or named is None:
        return None
    keys = [key for key in filters.split("\0") if key]
    if any("=" in key for key in keys):  # `git -c` would read the first = as the end of the key
        return None
    emptied = [
        word for key in keys for word in ("-c", f"{key}={'false' if key.endswith('.required') else ''}")
    ]
    changed = _said(folder, *emptied, "status", "--porcelain", *_TRACKED_ONLY, "--", ".")
    return None if changed is None else Commit(id=named.split()[0], dirty=bool(changed))


def _said(folder: Path, *words: str, may_be_anothers: bool = False) -> str | None:
    """Return git's output; None if it fails or does not answer within ANSWER_S. `config` fails with 1 if it finds nothing."""
    process = _git(folder, *words, may_be_anothers=may_be_anothers)
    try:
        said, _ = process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.communicate()
    is_found = process.returncode == 0 or (process.returncode == 1 and words[0] == "config")
    return os.fsdecode(said) if is_found else None


def _refuse_bare(folder: Path) -> None:
    """Raise UsageError if this folder or a parent looks like a bare repository to git.

    Git would obey the settings in such a folder. Git itself can refuse one only since 2.38.
    """
    for above in (folder.absolute(), *folder.absolute().parents):
        if os.path.lexists(above / ".git"):
            return
        if os.path.lexists(above / "HEAD") and any(
            os.path.lexists(above / one) for one in ("objects", "commondir")
        ):
            mend = "git would obey the settings in it: rename its HEAD, or send another folder"
            raise UsageError(f"{above} has the form of a bare git repository\n  {mend}")


def _top_of(folder: Path) -> Path | None:
    """Return the nearest folder with a `.git`, from this one upwards.

    If git finds no repository there, the `.git` is broken, e.g. because its main repository has moved.
    """
    folder = folder.absolute()
    return next((above for above in (folder, *folder.parents) if os.path.lexists(above / ".git")), None)


def _without_parents(names: list[str]) -> list[str]:
    """Leave out folders whose contents git lists too: the ignore rule names those contents, not the folder."""
    return [
        name
        for name, following in pairwise([*names, ""])
        if name != "./" and not (name.endswith("/") and following.startswith(name))
    ]


def _environment() -> dict[str, str]:
    """Return this process's variables without those by which a git hook or alias points git to another repository."""
    return {name: value for name, value in os.environ.items() if name not in _BINDING}


def _work_tree(folder: Path) -> dict[str, str]:
    """Return the variable that sets the work tree to the folder of the `.git`.

    A repository's settings may name another work tree.
    """
    top = _top_of(folder)
    return {"GIT_WORK_TREE": str(top)} if top is not None and (top / ".git").is_dir() else {}


def _git(folder: Path, *words: str, may_be_anothers: bool = False) -> subprocess.Popen[bytes]:
    safe = {"safe.directory": str(folder)} if may_be_anothers else {}  # honoured here by git 2.38 or newer
    settings = [word for key, value in {**_SETTINGS, **safe}.items() for word in ("-c", f"{key}={value}")]
    return subprocess.Popen(
        ["sh", "-c", _BOUNDED, "sh", "git", *settings, "-C", str(folder), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**_environment(), **_VARIABLES, **_work_tree(folder)},
    )
