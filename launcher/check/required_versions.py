"""The versions of libraries that a script's folder requires."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from launcher.base.bounded_read import read_bounded
from launcher.errors import BadFileError

_FILES = ("requirements*.txt", "pyproject.toml", "environment.y*ml", "setup.py", "setup.cfg")
_MAX_BYTES = 200_000


class Requirements:
    """The requirements in the files of some folders, and in the text of a script."""

    def __init__(self, folders: list[Path], script: str) -> None:
        texts = [
            _text(path)
            for folder in folders
            for pattern in _FILES
            for path in sorted(folder.glob(pattern))[:5]
        ]
        installs = re.findall(r"pip install[^\n]*", script)
        self._text = "\n".join([*texts, *installs])

    def admits(self, library: str, version: str) -> bool:
        """Return whether a version of a library can be the one that the script will find.

        If nothing is required, that is asked of the library in this Python, if it is installed.
        """
        words = re.findall(
            rf"(?<![\w.-]){library}(?:\[[\w, -]*\])?[ \t]*((?:[<>=!~]=?=?[ \t]*[\w.*+!]+[ \t]*,?[ \t]*)*)",
            self._text,
        )
        for word in words:
            try:
                specifier = SpecifierSet(re.sub(r"(?<![<>=!~])=(?!=)", "==", word.strip(" \t,")))
            except InvalidSpecifier:
                continue
            if not specifier.contains(version, prereleases=True):
                return False
        if words:
            return True
        try:
            return int(importlib.metadata.version(library).partition(".")[0]) >= int(
                version.partition(".")[0]
            )
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return True


def _text(path: Path) -> str:
    try:
        return read_bounded(path, _MAX_BYTES, cuts=True).decode(errors="replace")
    except (OSError, BadFileError):
        return ""
