"""Follow a command through the scripts and imports below a code folder."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base.bounded_read import read_bounded
from launcher.check.reading.module import Module
from launcher.errors import BadFileError
from launcher.planning.script.script import STARTER_MODULES

MAX_FILES = 400
MAX_BYTES = 1_000_000
_WORD = re.compile(r"[\w./-]+")
_COMPUTED = re.compile(
    rb"\bexec\(|\bos\.(system|popen|exec|spawn|posix_spawn)|\b(import_module|__import__|run_path|run_module|spec_from_file_location"
    rb"|entry_points|subprocess|locate|LightningCLI)\b"
)
"""The names by which a source starts code that it does not import."""
_SUFFIXES = (".py", ".sh", ".bash")


class Sources:
    """Follows a command through scripts and imports; each file is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: deque[Path] = deque()
        self._seen: set[Path] = set()
        self._packages: dict[Path, bool] = {}
        self._has_python = False
        self.is_whole = True
        """Whether all of the code was found and read so far."""
        self.installed: set[str] = set()
        """The first names of the imported modules that the code folder does not have."""

    def files(self, command: Sequence[str]) -> Iterator[Module]:
        """Yield the Python code that a command starts: in its words, in files, and in their imports."""
        for word, following in itertools.pairwise([*command, ""]):
            if word == "-c":
                yield from self._take(word, following.encode(errors="replace"), self._folder)
            elif word == "-m":
                before = len(self._waiting)
                self._import(following, self._folder)
                if len(self._waiting) == before and following not in STARTER_MODULES:
                    self.is_whole = False
            self._name(word, self._folder)
            if "/" in word:  # a program without a suffix
                self._wait_for(self._folder / word)
        for _ in range(MAX_FILES):
            if not self._waiting:
                self.is_whole = self.is_whole and self._has_python
                return
            path = self._waiting.popleft()
            try:
                source = read_bounded(path, MAX_BYTES, cuts=True)
            except (OSError, BadFileError):
                self.is_whole = False
                continue
            name = os.path.relpath(path, self._folder)
            yield from self._take(name, source, path.parent)
        self.is_whole = False

    def _take(self, name: str, source: bytes, folder: Path) -> Iterator[Module]:
        """Yield a source if it is Python, and queue the files that it names and imports."""
        module = Module.of(name, source, self._folder / name)
        if module is None or _COMPUTED.search(source):
            self.is_whole = False
        if module is None:
            self._read_shell(source.decode(errors="replace"), folder)
            return
        self._has_python = True
        for node in module.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    self._import(one.name, folder)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node, folder)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._name(node.value, folder)
        yield module

    def _read_shell(self, text: str, folder: Path) -> None:
        for line in text.splitlines():
            words = _words(line)
            for word, following in itertools.pairwise([*words, ""]):
                self._name(word, folder)
                if word == "-m":
                    self._import(following, self._folder)

    def _import_from(self, node: ast.ImportFrom, folder: Path) -> None:
        module = node.module or ""
        names = [f"{module}.{one.name}".strip(".") for one in node.names]
        if not node.level:
            for name in (module, *names):
                self._import(name, folder)
            return
        above = folder
        for _ in range(node.level - 1):
            above = above.parent
        for name in filter(None, (module, *names)):
            self._wait_for_module(above, name)

    def _import(self, module: str, folder: Path) -> None:
        """Queue a module of the code folder, and the packages that contain it."""
        if not re.fullmatch(r"\w+(\.\w+)*", module):
            return
        bases = {folder, self._folder, self._folder / "src"}
        found = [self._wait_for_module(base, module) for base in bases]
        if not any(found):
            self.installed.add(module.partition(".")[0])

    def _wait_for_module(self, base: Path, module: str) -> bool:
        """Queue a module below a folder; return whether its first package is there."""
        path, first = base, base / module.partition(".")[0]
        if first not in self._packages:
            self._packages[first] = first.is_dir() or first.with_suffix(".py").is_file()
        if not self._packages[first]:
            return False
        for part in module.split("."):
            self._wait_for(path / part / "__init__.py")
            self._wait_for(path / f"{part}.py")
            path /= part
        self._wait_for(path / "__main__.py")
        return True

    def _name(self, word: str, folder: Path) -> None:
        """Queue the script that a word names, relative to the code folder or to the file that contains the word."""
        if word.endswith(_SUFFIXES):
            for base in {self._folder, folder}:
                self._wait_for(base / word)

    def _wait_for(self, path: Path) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if path.is_file() and path.resolve().is_relative_to(self._folder.resolve()):
                self._waiting.append(path)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return _WORD.findall(line)
