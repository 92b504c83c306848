"""The rules of a `.launchignore`: gitignore's syntax; a pattern leaves out, `!pattern` includes."""

from __future__ import annotations

import enum
import fnmatch
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MOST_BYTES
from launcher.errors import BadFileError
from launcher.upload.default_exclusions import SECRET_ENDS

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

FILE = ".launchignore"
_EVERYTHING = ("*", "/*", "**", "/**")
_NAMED_ENDINGS = {f"*{ending}" for ending in SECRET_ENDS}
"""Only secrets have these endings, so a rule that names one means secrets."""


class IgnoreVerdict(enum.Enum):
    """What the rules say of a path: it stays, it travels, or it travels and a rule speaks of its name, not of `*`."""

    OUT = enum.auto()
    IN = enum.auto()
    IN_BY_NAME = enum.auto()


class LaunchIgnore:
    """The rules of one file. A rule speaks of a path that it matches, not of what lies below that path.

    Paths are relative to the folder that travels. `prefix` is that folder below the one of the file, with a `/` at its end;
    `inner` is the one of the file below that folder, likewise. Without `may_include` the rules only leave out.
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
        """Whether a rule includes something."""
        return bool(self._includes)

    @property
    def names_what_is_needed(self) -> bool:
        """Whether nothing travels but what a rule includes: one leaves out `*`."""
        return self._leaves_out_the_rest and self.includes

    def verdict(self, path: str, *, is_folder: bool) -> IgnoreVerdict | None:
        """Return what the last rule that matches a path says; None if none does."""
        path = self._prefix + path[self._inner :]
        parent = path.rpartition("/")[0] + "/"
        named = f"{path}/" if is_folder else path
        for pattern in self._patterns:
            if pattern.match_file(named) is None:
                continue
            if parent != "/" and pattern.match_file(parent) is not None:
                continue  # it is the folder above that the rule speaks of
            if pattern.include:
                return IgnoreVerdict.OUT
            if not self._may_include:
                return None
            return IgnoreVerdict.IN_BY_NAME if _names(str(pattern.pattern)) else IgnoreVerdict.IN
        return None

    def leads_below(self, folder: str, *, by_name: bool = False) -> bool:
        """Return whether a rule includes something below this folder by its path, as `!data/raw/a.csv` does for `data`.

        With `by_name` it has to name the folder itself: `!*/*` does not lead into `.ssh`.
        """
        parts = (self._prefix + folder[self._inner :]).split("/")
        rules = [rule.strip().strip("/").split("/") for rule in self._includes]
        return any(_leads(rule, parts) and not (by_name and parts[-1] not in rule) for rule in rules)


def rules_for(folder: Path, top: Path) -> list[LaunchIgnore]:
    """Return the rules for a folder that travels: its own, then those of the folders above it up to `top`, if it lies in that.

    Raises BadFileError for rules that cannot be read.
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
    """Return the rules of a folder; None without a `.launchignore`. Raises BadFileError for one that cannot be read.

    The other values are those of LaunchIgnore.
    """
    path = folder / FILE
    try:
        lines = read_bounded(path, MOST_BYTES).decode("utf-8-sig").splitlines()
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
    """Return whether a rule names something: `*`, `**`, `*.*`, `.*` and `[a-z]*` do not, nor does a mere ending, `*.json`."""
    name = rule.rstrip("/").rpartition("/")[2].lstrip("!")
    if name.startswith("*") and name not in _NAMED_ENDINGS:
        return False
    return any(map(str.isalnum, re.sub(r"\[[^]]*]", "", name)))


def _leads(rule: list[str], folder: list[str]) -> bool:
    """Return whether the parts of a rule go through a folder. A rule for any folder, like `**/a.csv`, leads into none."""
    if rule[0] == "**":
        return False
    for part, name in zip(rule, folder, strict=False):
        if part == "**":
            return True
        if not fnmatch.fnmatchcase(name, part):
            return False
    return len(rule) > len(folder)
