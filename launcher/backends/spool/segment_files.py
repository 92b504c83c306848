"""The files of a run that go into a segment's payload: its control files, its record, and its work files."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from launcher.agent.record.files import read_json
from launcher.agent.record.rundir import Run
from launcher.backends.kaggle.kaggle_script import RUN, Member, opened

CONTROL = ("plan.json", "prepared.json", "manifest.json", "wish", "token")
RECORDED = ("attempt.json", "state.json", "sealed.json", "heartbeat")
WORKED = ("code", "data", "checkpoints", "artifacts", "home")


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


def extract_run(payload: bytes, folder: Path) -> None:
    """Extract the run's folder from a payload, with files, links and modes as packed. Raises BadFileError."""
    with opened(payload) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # missing before Python 3.11.4
        for member in archive:
            if member.name.startswith(RUN):
                member.name = member.name.removeprefix(RUN)
                archive.extract(member, folder)


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
