"""Read a requirements.txt as pip does, into requirements that can be installed on another machine.

Requirements that cannot be installed there are refused with their line: a path outside the folder, a package
in a subfolder. Parts that launch decides itself are left out and reported: options, hashes, and torch's CUDA
packages.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic_core import PydanticCustomError

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.errors import BadFileError
from launcher.values.credential import credential_in
from launcher.values.software.requirement import package_of, requirement_text

_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTION = re.compile(r"(--[a-z-]+|-[a-zA-Z])(?:\s*=\s*|\s*)(.*)", re.DOTALL)
_OPTIONS_AFTER = re.compile(r"\s--[a-z].*", re.DOTALL)
_PATH = re.compile(r"(?:\.{1,2}(?:/|\[|$)|/|~|file:).*")
_URL = re.compile(r"(?:git\+)?[a-z]+://\S+")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+(?:\[[^]]*\])?)")
_SUBDIRECTORY = re.compile(r"\bsubdirectory=[^&]+")
_LONG = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-i": "--index-url",
    "-f": "--find-links",
}
_INDEXES = ("--index-url", "--extra-index-url", "--find-links", "--no-index", "--trusted-host")
MAX_FILES = 20


class RequirementLine(NamedTuple):
    """A line of a file, joined with its continuation lines, and the number of the first of them."""

    text: str
    file: Path
    number: int

    def error(self, folder: Path, why: str, mend: str = "") -> BadFileError:
        """Return the error for this line. A credential in it is not repeated."""
        shown = "" if credential_in(self.text) else f" {self.text[:80]}:"
        name = os.path.relpath(self.file, folder)
        return BadFileError(f"{name}: line {self.number}:{shown} {why}" + (f"\n  {mend}" if mend else ""))


class RequirementFile(NamedTuple):
    """The contents of a file and of the files that it includes.

    `extras` are the extras of the project in the folder (`-e .[train]`); None if the file does not name the
    project. `indexes` are lines that name a package index. `ignored` are options without effect. `is_hashed`: a
    line has hashes.
    """

    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    extras: tuple[str, ...] | None = None
    indexes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    is_hashed: bool = False


def read(path: Path, folder: Path) -> RequirementFile:
    """Return the contents of a file in a folder.

    Raises BadFileError that names file, line and the change to make.
    """
    reader = _Reader(folder)
    reader.read(path, is_constraint=False)
    return RequirementFile(
        tuple(dict.fromkeys(reader.requirements)),
        tuple(dict.fromkeys(reader.constraints)),
        reader.extras,
        tuple(dict.fromkeys(reader.indexes)),
        tuple(dict.fromkeys(reader.ignored)),
        reader.is_hashed,
    )


class _Reader:
    """Reads a file and the files that it includes with -r and -c, each once."""

    def __init__(self, folder: Path) -> None:
        self.requirements: list[str] = []
        self.constraints: list[str] = []
        self.extras: tuple[str, ...] | None = None
        self.indexes: list[str] = []
        self.ignored: list[str] = []
        self.is_hashed = False
        self._folder = folder
        self._seen: set[Path] = set()

    def read(self, path: Path, *, is_constraint: bool) -> None:
        """Read one file."""
        self._seen.add(path.resolve())
        for line in _lines(path, self._folder):
            if line.text.startswith("-"):
                self._option(line, is_constraint=is_constraint)
            else:
                self._requirement(line, is_constraint=is_constraint)

    def _option(self, line: RequirementLine, *, is_constraint: bool) -> None:
        found = _OPTION.fullmatch(line.text)
        if found is None:
            raise line.error(self._folder, "is not an option of pip")
        name, value = _LONG.get(found[1], found[1]), found[2].strip().strip("'\"")
        if name in ("--requirement", "--constraint"):
            self._file(line, value, is_constraint=is_constraint or name == "--constraint")
        elif name == "--editable":
            self._requirement(line._replace(text=value), is_constraint=is_constraint)
        elif name in _INDEXES:
            self.indexes.append(f"{name} {value}".strip())
        else:
            self.ignored.append(name)

    def _file(self, line: RequirementLine, value: str, *, is_constraint: bool) -> None:
        path = line.file.parent / value
        if "://" in value or not path.resolve().is_relative_to(self._folder.resolve()):
            raise line.error(self._folder, f"is not in {self._folder}", "copy it into the folder")
        if path.resolve() in self._seen:
            return
        if len(self._seen) >= MAX_FILES:
            raise line.error(self._folder, f"is file {MAX_FILES + 1}: at most {MAX_FILES} are read")
        self.read(path, is_constraint=is_constraint)

    def _requirement(self, line: RequirementLine, *, is_constraint: bool) -> None:
        written = _OPTIONS_AFTER.sub("", line.text).strip()
        self.is_hashed |= "--hash" in line.text
        if _PATH.fullmatch(written):
            self._path(line, written)
            return
        if _URL.fullmatch(written):
            url, _, fragment = written.partition("#")
            folder = _SUBDIRECTORY.search(fragment)
            self.is_hashed |= "sha256=" in fragment
            written = f"{self._name_in(line, written)} @ {url}" + (f"#{folder[0]}" if folder else "")
        try:
            checked = requirement_text(written)
        except PydanticCustomError as error:
            raise line.error(self._folder, error.message()) from error
        except ValueError as error:
            raise line.error(self._folder, str(error)) from error
        (self.constraints if is_constraint else self.requirements).append(checked)

    def _path(self, line: RequirementLine, written: str) -> None:
        """Accept the project in the folder itself; refuse any other path."""
        path, _, extras = written.removeprefix("file://").partition("[")
        if (line.file.parent / path).resolve() == self._folder.resolve():
            names = [one.strip() for one in extras.rstrip("]").split(",")] if extras else []
            self.extras = tuple(dict.fromkeys((*(self.extras or ()), *filter(None, names))))
            return
        mend = "a version of it on an index, or   NAME @ git+https://…   ; code in the folder needs no requirement"
        raise line.error(self._folder, "a path here cannot be installed on the host", mend)

    def _name_in(self, line: RequirementLine, url: str) -> str:
        """Return the name of the distribution at a URL."""
        if found := _EGG.search(url):
            return found[1]
        try:
            return str(parse_wheel_filename(unquote(url.partition("#")[0].rpartition("/")[2]))[0])
        except InvalidWheelFilename:
            raise line.error(self._folder, "does not contain the package's name", f"NAME @ {url}") from None


def _lines(path: Path, folder: Path) -> Iterator[RequirementLine]:
    """Yield the lines of a file, joined with their continuation lines, without comments and empty lines."""
    name = os.path.relpath(path, folder)
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        mend = f"iconv -f utf-16 -t utf-8 {shlex.quote(name)}"
        raise BadFileError(
            f"{name}: is not UTF-8 text (byte {error.start})\n  if it is UTF-16   {mend}"
        ) from error
    except OSError as error:
        raise BadFileError(f"{name}: cannot be read: {error.strerror}") from error
    joined, first = "", 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.endswith("\\") and not _COMMENT.match(line):
            first, joined = (first if joined else number), joined + line[:-1]
            continue
        whole = _COMMENT.sub("", joined + line).strip()
        if whole:
            yield RequirementLine(whole, path, first if joined else number)
        joined = ""


def constrained(
    requirements: tuple[str, ...], constraints: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return requirements combined with the versions of the constraints, and the names of the unused constraints."""
    limits = [limit for limit in map(Requirement, constraints) if limit.marker is None and limit.url is None]
    found: list[str] = []
    for written in requirements:
        wanted = Requirement(written)
        for limit in limits:
            if canonicalize_name(limit.name) == canonicalize_name(wanted.name) and wanted.url is None:
                wanted.specifier &= limit.specifier
        found.append(str(wanted))
    names = {package_of(one) for one in requirements}
    others = tuple(one.name for one in limits if canonicalize_name(one.name) not in names)
    return tuple(found), others
