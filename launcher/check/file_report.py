"""Check one file after another, and report each problem with its place for people and editors."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from launcher.check.checking import Found, check_module, is_concerned
from launcher.check.edit import Edit
from launcher.check.file_search import root_of
from launcher.check.inference.card_calls import Card
from launcher.check.project import Project
from launcher.check.reading.module import Module
from launcher.check.reading.positions import Region
from launcher.check.reading.source_file import Source, read_bytes, read_source
from launcher.check.reading.time_limit import TooSlowError, limited
from launcher.check.reading.unchecked import UncheckedError

_MAX_SECONDS = 4.0
"""A script of 3,000 lines takes less than one second."""


class Change(NamedTuple):
    """An edit, and the part of the file that it replaces."""

    edit: Edit
    region: Region


class Finding(NamedTuple):
    """A problem of a file. `code` is that of its rule; None for a file, or a cell, that cannot be checked.

    `changes` mend it; without any, a person has to.
    """

    path: Path
    region: Region
    code: str | None
    message: str
    mend: str = ""
    changes: tuple[Change, ...] = ()

    @property
    def key(self) -> tuple[str, int, int, int, str]:
        """The order of findings. A problem that was found by two scripts has one key."""
        place = self.region
        return str(self.path), place.cell or 0, place.line, place.column, self.code or ""


class FileReport(NamedTuple):
    """The problems found from one file; some may be in modules that it imports.

    `used` are these modules. `digests` are those of the files that `changes` would change, as they were read.
    """

    findings: tuple[Finding, ...] = ()
    used: frozenset[Path] = frozenset()
    digests: Mapping[Path, bytes] = {}
    is_unreadable: bool = False


class FileChecker:
    """Checks files for one card and some rules. `texts` are the contents of files that are not written yet."""

    def __init__(self, card: Card, codes: Container[str], texts: Mapping[Path, bytes]) -> None:
        self._card, self._codes, self._texts = card, codes, texts
        self._projects: dict[Path, Project] = {}
        self._root_of = cache(lambda folder: root_of(folder / "file"))

    def check(self, path: Path) -> FileReport:
        """Return the report of a file. A mistake in it is a problem too."""
        try:
            source = read_source(path, self._read(path))
        except UncheckedError as error:
            finding = Finding(path, error.region, None, error.why)
            return FileReport((finding,), is_unreadable=error.is_unreadable)
        mistakes = _mistakes(source)
        if not is_concerned(source.text):
            return FileReport(mistakes)
        project = self._project(path)
        project.begin()
        installs = self._read(path).decode(errors="replace") if source.notebook is not None else None
        module = Module(
            path.name, source.tree, source.text, path, can_change=source.can_change, installs=installs
        )
        try:
            with limited(_MAX_SECONDS):
                found = check_module(module, project, self._card)
        except TooSlowError:
            return FileReport(
                (*mistakes, Finding(path, Region.at(1, 1), None, "takes too long: not checked"))
            )
        except (RecursionError, MemoryError):
            return FileReport(
                (*mistakes, Finding(path, Region.at(1, 1), None, "is nested too deeply: not checked"))
            )
        modules = {**project.used, path: module}
        findings = tuple(_finding(one, source, modules) for one in found if one.rule.code in self._codes)
        changed = {change.edit.path for one in findings for change in one.changes}
        digests = {one: digest(self._read(one)) for one in changed}
        return FileReport((*mistakes, *findings), frozenset(project.used), digests)

    def _read(self, path: Path) -> bytes:
        """Return the bytes of a file, or of its new contents. Raises UncheckedError."""
        return self._texts[path] if path in self._texts else read_bytes(path)

    def _project(self, path: Path) -> Project:
        root = self._root_of(path.parent)
        if root not in self._projects:
            self._projects[root] = Project(root, self._read)
        return self._projects[root]


def digest(data: bytes) -> bytes:
    """Return a short digest of a file, to see whether it has changed."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _mistakes(source: Source) -> tuple[Finding, ...]:
    """Return the cells of a notebook that cannot be checked."""
    cells = source.notebook.cells if source.notebook is not None else ()
    return tuple(
        Finding(source.path, cell.mistake.region._replace(cell=cell.number), None, cell.mistake.why)
        for cell in cells
        if cell.mistake is not None
    )


def _finding(found: Found, source: Source, modules: Mapping[Path, Module]) -> Finding:
    """Return a problem with its places. It has no changes if one of the files cannot be changed."""
    region = _placed(found.region, found.path, source)
    changes = tuple(_change(edit, source, modules) for edit in found.edits)
    known = tuple(change for change in changes if change is not None)
    mended = known if len(known) == len(changes) else ()
    return Finding(found.path, region, found.rule.code, found.message, found.mend, mended)


def _change(edit: Edit, source: Source, modules: Mapping[Path, Module]) -> Change | None:
    module = modules.get(edit.path)
    if module is None or not module.can_change:
        return None
    if (
        edit.path == source.path
        and source.notebook is not None
        and not source.notebook.can_change(edit.start, edit.end)
    ):
        return None
    region = module.lines.region(edit.start, edit.end)
    return Change(edit, _placed(region, edit.path, source))


def _placed(region: Region, path: Path, source: Source) -> Region:
    """Return a part of a source as people count it: in a notebook, by its cell."""
    return source.notebook.place(region) if source.notebook is not None and path == source.path else region
