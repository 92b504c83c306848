"""The files of a run that go into a segment's payload: its control files, its record, and its work files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from launcher.agent.record.files import read_json
from launcher.agent.record.rundir import Run

CONTROL = ("plan.json", "prepared.json", "manifest.json", "wish", "token")
RECORDED = ("attempt.json", "state.json", "sealed.json", "heartbeat")
TREE = "work/"
WORKED = ("code", "data", "checkpoints", "artifacts", "home")


class Member(NamedTuple):
    """A member of a run's folder: a file, a link or an empty folder.

    `size` is in bytes; `open` opens its contents.
    """

    path: str
    size: int
    open: Callable[[], IO[bytes]]
    is_executable: bool = False
    link: str | None = None
    is_folder: bool = False

    @classmethod
    def of(cls, path: str, data: bytes, *, is_executable: bool = False) -> Member:
        """Return the member for contents in memory."""
        return cls(path, len(data), lambda: io.BytesIO(data), is_executable)

    @property
    def is_in_tree(self) -> bool:
        """Whether the member is in the run's work/, which may be sent in a separate archive."""
        return self.path.startswith(TREE)


def record_files(run: Run) -> Iterator[Member]:
    """Yield the small files that a segment needs to continue.

    Growing files, such as logs and events, are left out.
    """
    paths = [Path(run.control, name) for name in CONTROL]
    paths += [Path(run.record, f"{number:04d}", name) for number in run.numbers() for name in RECORDED]
    for path in paths:
        if path.is_file():
            yield Member.of(path.relative_to(run.path).as_posix(), path.read_bytes())


def work_files(run: Run, *, only_shipped: bool) -> Iterator[Member]:
    """Yield a run's work files. `only_shipped`: only those that its client uploaded, not those made since."""
    shipped = {f"work/{path}" for path in read_json(run.manifest)} if only_shipped else None
    for name in WORKED:
        for member in _below(Path(run.work, name), f"work/{name}"):
            if shipped is None or member.path in shipped:
                yield member


def _below(path: Path, name: str) -> Iterator[Member]:
    """Yield the files below a path.

    A relative link stays a link; an absolute one, into the spool's store, is followed.
    """
    is_link = path.is_symlink()
    if is_link and not os.path.isabs(target := os.readlink(path)):
        yield Member(name, 0, lambda: path.open("rb"), link=target)
    elif path.is_dir():
        names = sorted(os.listdir(path))
        if not names:
            yield Member(name, 0, io.BytesIO, is_folder=True)
        for inner in names:
            yield from _below(path / inner, f"{name}/{inner}")
    elif path.is_file():
        about = path.stat()
        yield Member(name, about.st_size, lambda: path.open("rb"), bool(about.st_mode & 0o100))
