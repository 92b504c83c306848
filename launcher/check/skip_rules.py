"""The rules of `.gitignore` and `.launchignore` that leave paths out of a search."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.base.bounded_read import read_bounded
from launcher.errors import BadFileError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_FILES = (".launchignore", ".gitignore")
"""The first has priority."""
_MAX_BYTES = 1_000_000


class SkipRules(NamedTuple):
    """The rules of one file. `leads_back`: a rule of a `.launchignore` includes paths below folders that others exclude."""

    folder: str
    spec: GitIgnoreSpec
    leads_back: bool

    def leaves_out(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether an absolute path is left out; None if no rule matches it."""
        relative = os.path.relpath(path, self.folder).replace(os.sep, "/")
        verdict = self.spec.check_file(f"{relative}/" if is_folder else relative).include
        return None if is_folder and verdict and self.leads_back else verdict


def rules_in(folder: str) -> tuple[SkipRules, ...]:
    """Return the rules of a folder. A file that cannot be read has none."""
    return tuple(found for name in _FILES if (found := _rules(folder, name)) is not None)


def rules_above(folder: Path) -> tuple[SkipRules, ...]:
    """Return the rules of the folders above one, up to its repository, the nearest first."""
    if not any(_is_top(one) for one in (folder, *folder.parents)):
        return ()
    found: list[SkipRules] = []
    for one in (folder, *folder.parents):
        if one != folder:
            found += rules_in(str(one))
        if _is_top(one):
            break
    return tuple(found)


def _is_top(folder: Path) -> bool:
    return os.path.lexists(folder / ".git")


def _rules(folder: str, name: str) -> SkipRules | None:
    path = f"{folder}{os.sep}{name}"
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, BadFileError, UnicodeDecodeError):
        return None
    from pathspec import GitIgnoreSpec  # most folders have no such file
    from pathspec.patterns.gitignore import GitIgnorePatternError

    try:
        spec = GitIgnoreSpec.from_lines(text.splitlines())
    except GitIgnorePatternError:
        return None
    includes = name == ".launchignore" and any(one.include is False for one in spec.patterns)
    return SkipRules(folder, spec, includes)
