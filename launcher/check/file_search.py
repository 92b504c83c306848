"""Find the files to check: those that are named, and the Python files and notebooks below named folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.check.skip_rules import SkipRules, rules_above, rules_in
from launcher.errors import UsageError

SUFFIXES = (".py", ".ipynb")
_SKIPPED = frozenset(
    (
        "__pycache__",
        "__pypackages__",
        "buck-out",
        "build",
        "dist",
        "node_modules",
        "site-packages",
        "venv",
        "wandb",
    )
)
"""Folders of packages, builds and copies of code, beside the hidden ones."""
_MARKS = ("pyvenv.cfg", "conda-meta", ".launches")
"""Entries that mark a virtual or conda environment, or the folder with launch's copies of runs."""
_ROOTS = (".git", "pyproject.toml", "launch.toml")
_MAX_DEPTH = 300


def find_files(paths: Sequence[Path]) -> dict[Path, bool]:
    """Return the absolute paths of the files to check, in order, each with whether it was named itself.

    A named file is checked under any name, also if a rule leaves it out. A file with several names is
    checked once. Raises UsageError for a path that does not exist.
    """
    missing = [str(path) for path in paths if not os.path.lexists(path)]
    if missing:
        raise UsageError("\n".join(f"{path}: no such file or folder" for path in missing))
    found: dict[str, tuple[Path, bool]] = {}
    for path in paths:
        absolute = Path(os.path.abspath(path))
        if absolute.is_dir():
            for one in sorted(_below(absolute)):
                found.setdefault(os.path.realpath(one), (Path(one), False))
        else:
            found[os.path.realpath(absolute)] = (absolute, True)
    return dict(sorted(found.values()))


def root_of(path: Path) -> Path:
    """Return the folder whose modules a file may import: its project, or the current folder, or the file's own."""
    project = next((one for one in path.parents if any(os.path.lexists(one / mark) for mark in _ROOTS)), None)
    here = Path.cwd()
    if project is None:
        return here if path.is_relative_to(here) else path.parent
    return project


def _below(folder: Path) -> Iterator[str]:
    """Yield the files below a folder that no rule leaves out. Links to folders are not followed."""
    above = rules_above(folder)
    if _is_left_out(str(folder), above, is_folder=True):
        above = ()  # it was named although a rule leaves it out
    waiting = [(str(folder), above, 0)]
    while waiting:
        place, outer, depth = waiting.pop()
        try:
            with os.scandir(place) as scan:
                entries = list(scan)
        except OSError:
            continue
        names = {entry.name for entry in entries}
        if depth and any(mark in names for mark in _MARKS):
            continue
        rules = (*(rules_in(place) if names & {".gitignore", ".launchignore"} else ()), *outer)
        for entry in entries:
            is_folder = _is_folder(entry)
            if entry.name.startswith(".") or (is_folder and entry.name in _SKIPPED):
                continue
            if not is_folder and (not entry.name.endswith(SUFFIXES) or _leads_to_folder(entry)):
                continue
            if rules and _is_left_out(entry.path, rules, is_folder=is_folder):
                continue
            if not is_folder:
                yield entry.path
            elif depth < _MAX_DEPTH:
                waiting.append((entry.path, rules, depth + 1))


def _is_left_out(path: str, rules: Sequence[SkipRules], *, is_folder: bool) -> bool:
    """Whether the first rules with a verdict on a path leave it out."""
    for one in rules:
        verdict = one.leaves_out(path, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a loop of links
        return False
