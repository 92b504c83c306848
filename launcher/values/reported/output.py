"""A run's files, as its host lists them: another machine's data, checked before any use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from launcher.values.base import Record

MAX_FILES = 200_000
MAX_DEPTH = 80
"""The maximum number of parts of a path.

An agent lists at most 64 folders; Python's functions for trees fail on deeper ones.
"""
TOPS = ("artifacts", "checkpoints", "code", "home", "work")
Loss = Literal["nothing", "checkpoints", "all"]
"""The part of a run that its removal may destroy."""
Kind = Literal["artifact", "output", "checkpoint"]


def _inside(path: str) -> str:
    """Return a path to a file below one of the `TOPS` folders. Raises ValueError for other paths."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise ValueError(f"{path[:200]!r} is more than {MAX_DEPTH} folders deep")
    if len(parts) < 2 or parts[0] not in TOPS or "\0" in path or {"", ".", ".."} & {*parts}:
        raise ValueError(f"{path[:200]!r} is not the path of a file that a run may write")
    return path


Path = Annotated[str, Field(max_length=4096), AfterValidator(_inside)]
Size = Annotated[int, Field(ge=0, le=2**53)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nanoseconds = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class RunOutput(NamedTuple):
    """A file that a run wrote: its path below the run's work/, kind, bytes, and modification time by the host's clock."""

    path: Path
    kind: Kind
    size: Size
    changed_ns: Nanoseconds


class Content(NamedTuple):
    """A file that a run wrote, with the SHA-256 of its content."""

    path: Path
    size: Size
    changed_ns: Nanoseconds
    sha256: Sha256


class Outputs(NamedTuple):
    """The files that a run wrote, the paths that could not be read with the reasons, and the host's clock."""

    files: list[RunOutput]
    left_out: dict[str, str]
    now_ns: int


class Manifest(NamedTuple):
    """Files with their digests, and those that could not be read with the reasons."""

    files: list[Content]
    left_out: dict[str, str]


class LastCopies(Record):
    """The files of a run that only its host has: some of them as (path, kind, bytes), and the total number and bytes.

    `unseen` lists the paths that could not be read, with the reasons.
    """

    files: list[tuple[Path, Kind, Size]] = []
    count: Size = 0
    bytes: Size = 0
    unseen: dict[str, str] = {}


OUTPUT = TypeAdapter(RunOutput, config=ConfigDict(defer_build=True))
CONTENT = TypeAdapter(Content, config=ConfigDict(defer_build=True))


def checked(files: Sequence[RunOutput]) -> list[RunOutput]:
    """Return files if their paths can coexist on a file system. Raises ValueError."""
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise ValueError("it names a file twice")
    for path in paths:
        folder = path.rpartition("/")[0]
        while "/" in folder:
            if folder in paths:
                raise ValueError(f"{path[:200]!r} lies below a file")
            folder = folder.rpartition("/")[0]
    if sum(file.size for file in files) > 2**53:
        raise ValueError("its files are too large to be true")
    return list(files)
