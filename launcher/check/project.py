"""The Python sources of one folder, each parsed once when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from launcher.check.reading.module import Module
from launcher.check.reading.source_file import read_bytes, read_source
from launcher.check.reading.time_limit import tick
from launcher.check.reading.unchecked import UncheckedError

_LIBRARIES = frozenset(
    ("accelerate", "datasets", "diffusers", "numpy", "os", "peft", "sys", "torch", "transformers", "trl")
)
"""Never a module of the folder: their own repositories hold folders of these names."""
_MAX_KEPT = 300
"""Parsed modules that are kept for other scripts. The tree of 300 lines takes about 1 MB."""


class Project:
    """Finds the modules that a script imports, below one folder. `read` returns a file's bytes; it raises UncheckedError."""

    def __init__(self, root: Path, read: Callable[[Path], bytes] = read_bytes) -> None:
        self.root = root
        self._read_bytes = read
        self.used: dict[Path, Module] = {}
        """The modules that were found since `begin`."""
        self._modules: dict[Path, Module | None] = {}
        self._found: dict[tuple[Path, str], Module | None] = {}

    def begin(self) -> None:
        """Begin with another script: forget the modules if there are too many, and which of them the last script used."""
        self.used = {}
        if len(self._modules) > _MAX_KEPT:
            self._modules.clear()
            self._found.clear()

    def add(self, module: Module) -> None:
        """Take a source that was read already."""
        self._modules[module.path] = module

    def find(self, module: Module, name: str) -> Module | None:
        """Return the module of this folder that an import in `module` names; None for a library."""
        tick()
        key = (module.path.parent, name)
        if key not in self._found:
            self._found[key] = self._look(module.path.parent, name)
        found = self._found[key]
        if found is not None:
            self.used[found.path] = found
        return found

    def _look(self, folder: Path, name: str) -> Module | None:
        dots = len(name) - len(name.lstrip("."))
        if name.partition(".")[0] in _LIBRARIES:
            return None
        for _ in range(dots - 1):
            folder = folder.parent
        bases = [folder] if dots else [folder, *self._above(folder), self.root, self.root / "src"]
        parts = [part for part in name.split(".") if part]
        for base in bases:
            path = base.joinpath(*parts) if parts else base
            for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                found = self._read(candidate)
                if found is not None:
                    return found
        return None

    def _above(self, folder: Path) -> list[Path]:
        return [one for one in folder.parents if one.is_relative_to(self.root)]

    def _read(self, path: Path) -> Module | None:
        if path not in self._modules:
            self._modules[path] = None
            try:
                if path.is_file() and path.resolve().is_relative_to(self.root.resolve()):
                    source = read_source(path, self._read_bytes(path))
                    name = os.path.relpath(path, self.root)
                    self._modules[path] = Module(
                        name, source.tree, source.text, path, can_change=source.can_change
                    )
            except (OSError, UncheckedError, ValueError):
                pass
        return self._modules[path]
