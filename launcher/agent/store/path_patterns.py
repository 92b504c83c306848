"""Patterns by which a job names files: a subset of gitignore, matched against paths in the working folder.

`*.pt` matches at any depth, `out/` matches a folder with everything in it, `/log.csv` and `a/b` match from
the working folder, and `**` matches any number of folders. A pattern that begins with `!` excludes files
again. The last matching pattern decides.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Pattern, Sequence


class _Rule(NamedTuple):
    regex: Pattern[str]
    includes: bool


class PathPatterns:
    """The patterns of one key of a job. An empty list matches every path."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns."""
        self._rules: List[_Rule] = [_rule(pattern) for pattern in patterns]

    def match(self, path: str) -> bool:
        """Whether the patterns select a file; `path` is relative to the working folder."""
        if not self._rules:
            return True
        decided = [rule.includes for rule in self._rules if rule.regex.fullmatch(path)]
        return bool(decided) and decided[-1]


def _rule(pattern: str) -> _Rule:
    includes = not pattern.startswith("!")
    text = pattern if includes else pattern[1:]
    is_folder = text.endswith("/")
    text = re.sub(r"\A\./", "", text.rstrip("/"))
    anchor = "" if "/" in text else "(?:.*/)?"
    below = "/.*" if is_folder else "(?:/.*)?"  # a pattern that matches a folder includes everything in it
    return _Rule(re.compile(anchor + _translate(text.lstrip("/")) + below, re.DOTALL), includes)


def _translate(text: str) -> str:
    """Return a gitignore pattern as a regular expression."""
    regex, at = "", 0
    while at < len(text):
        if text.startswith("**/", at):
            regex, at = regex + "(?:.*/)?", at + 3
        elif text.startswith("**", at):
            regex, at = regex + ".*", at + 2
        elif text[at] == "[" and "]" in text[at + 2 :]:
            end = text.index("]", at + 2)
            inside = text[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            regex += "[%s]" % ("^" + inside[1:] if inside.startswith("!") else inside)
            at = end + 1
        else:
            regex += {"*": "[^/]*", "?": "[^/]"}.get(text[at], re.escape(text[at]))
            at += 1
    return regex
