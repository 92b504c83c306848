"""The rules of a `.launchignore`, in gitignore's syntax: a pattern excludes, `!pattern` includes."""

from __future__ import annotations

import enum
import fnmatch
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.errors import BadFileError
from launcher.upload.default_exclusions import SECRET_ENDS

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

FILE = ".launchignore"
_EVERYTHING = ("*", "/*", "**", "/**")
_NAMED_ENDINGS = {f"*{ending}" for ending in SECRET_ENDS}
"""Only secrets have these endings, so a rule that names one refers to secrets."""


class IgnoreVerdict(enum.Enum):
    """A verdict on a path: excluded, included, or included by a rule that names it and not just `*`."""

    OUT = enum.auto()
    IN = enum.auto()
    IN_BY_NAME = enum.auto()


class LaunchIgnore:
    """The rules of one file. A rule applies to paths that it matches, not to paths below them.

    Paths are relative to the uploaded folder. `prefix` is the path from the file's folder to the uploaded
    folder, `inner` the path from the uploaded folder to the file's folder; both end with a `/`. Without
    `may_include` the rules only exclude.
    """

    def __init__(
        self,
        patterns: list[GitIgnoreSpecPattern],
        prefix: str = "",
        inner: str = "",
        *,
        may_include: bool = True,
    ) -> None:
        self._patterns = patterns[::-1]
        self._prefix, self._inner, self._may_include = prefix, len(inner), may_include
        self._leaves_out_the_rest = any(
            one.include and str(one.pattern).strip() in _EVERYTHING for one in patterns
        )
        self._includes = [str(one.pattern)[1:] for one in patterns if may_include and one.include is False]

    @property
    def includes(self) -> bool:
        """Whether any rule includes paths."""
        return bool(self._includes)

    @property
    def names_what_is_needed(self) -> bool:
        """Whether only included paths are sent, because a rule excludes `*`."""
        return self._leaves_out_the_rest and self.includes

    def verdict(self, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        """Return the verdict of the last rule that matches a path, or None."""
        path = self._prefix + path[self._inner :]
        parent = path.rpartition("/")[0] + "/"
        named = f"{path}/" if is_folder else path
        for pattern in self._patterns:
            if pattern.match_file(named) is None:
                continue
            if parent != "/" and pattern.match_file(parent) is not None:
                continue  # the rule matches the parent folder
            if pattern.include:
                return IgnoreVerdict.OUT
            if not self._may_include:
                return None
            return IgnoreVerdict.IN_BY_NAME if _names(str(pattern.pattern)) else IgnoreVerdict.IN
        return None

    def leads_below(self, folder: str, *, by_name: bool = False) -> bool:
        """Return whether a rule includes a path below this folder, as `!data/raw/a.csv` does for `data`.

        With `by_name` the rule must name the folder itself: `!*/*` does not apply to `.ssh`.
        """
        parts = (self._prefix + folder[self._inner :]).split("/")
        rules = [rule.strip().strip("/").split("/") for rule in self._includes]
        return any(_leads(rule, parts) and not (by_name and parts[-1] not in rule) for rule in rules)


def rules_for(folder: Path, top: Path) -> list[LaunchIgnore]:
    """Return the rules for an uploaded folder: its own, then its parents' up to `top`, if the folder lies in `top`.

    Raises BadFileError for unreadable rules.
    """
    around = (
        read_rules(above, f"{folder.relative_to(above).as_posix()}/")
        for above in folder.parents
        if above.is_relative_to(top)
    )
    return [rules for rules in (read_rules(folder), *around) if rules is not None]


def read_rules(
    folder: Path, prefix: str = "", inner: str = "", *, may_include: bool = True
) -> LaunchIgnore | None:
    """Return the rules of a folder, or None without a `.launchignore`.

    Raises BadFileError for an unreadable file. The other arguments are those of LaunchIgnore.
    """
    path = folder / FILE
    try:
        lines = read_bounded(path, MAX_BYTES).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path} cannot be read: {error}") from error
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore import GitIgnorePatternError

    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except GitIgnorePatternError as error:
        raise BadFileError(f"{path}: {error}") from error
    return LaunchIgnore(
        [one for one in spec.patterns if one.include is not None], prefix, inner, may_include=may_include
    )


def _names(rule: str) -> bool:
    """Return whether a rule ends with a name, not just a pattern.

    `*`, `**`, `*.*`, `.*`, `[a-z]*` and an ending such as `*.json` are just patterns.
    """
    name = rule.rstrip("/").rpartition("/")[2].lstrip("!")
    if name.startswith("*") and name not in _NAMED_ENDINGS:
        return False
    return any(map(str.isalnum, re.sub(r"\[[^]]*]", "", name)))


def _leads(rule: list[str], folder: list[str]) -> bool:
    """Return whether a rule's path goes through a folder.

    A rule that begins with `**`, such as `**/a.csv`, does not count.
    """
    if rule[0] == "**":
        return False
    for part, name in zip(rule, folder, strict=False):
        if part == "**":
            return True
        if not fnmatch.fnmatchcase(name, part):
            return False
    return len(rule) > len(folder)
