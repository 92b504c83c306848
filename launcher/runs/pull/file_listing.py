"""List a run's files for `launch ls`: from its host, or from here if the run was removed there or the host is away."""

from __future__ import annotations

import os
from typing import NamedTuple

from rich.filesize import decimal

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, RunError, UnreachableError
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import Here, LocalCopies
from launcher.runs.pull.pulling import named_by, shown_path
from launcher.runs.run_client import open_client
from launcher.values.host import Host
from launcher.values.public_result import public


@public("FileRow")
class FileRow(NamedTuple):
    """A file of a run, and whether it is on this machine."""

    path: str
    size: int
    kind: str
    here: Here


class Listing(NamedTuple):
    """The files of a run, and the unreadable files with the reasons.

    `unreached` is the error of a host that did not answer: only local files are listed then.
    """

    rows: list[FileRow]
    left_out: dict[str, str]
    unreached: UnreachableError | None = None


def list_files(host: Host | None, local_copy: LocalCopy, path: str | None, stage: Stage) -> Listing:
    """Return a run's files, or those at a path; without a host, the local files.

    Raises RunError if the path has no files.
    """
    if host is None or local_copy.is_freed:
        return Listing(_rows_here(local_copy, path, is_on_host=not local_copy.is_freed), {})
    try:
        with open_client(host, local_copy) as client:
            listed = client.runs.outputs(
                local_copy.run, lambda read: stage.progress(f"{decimal(read)} compared"), every_file=True
            )
    except UnreachableError as error:
        return Listing(_rows_here(local_copy, path, is_on_host=True), {}, error)
    except AgentError as error:
        if error.code != "no-run":  # another client has removed it
            raise
        return Listing(_rows_here(local_copy, path, is_on_host=False), {})
    copies = LocalCopies(local_copy)
    files = listed.files if path is None else named_by(path, listed.files, local_copy.short)
    rows = [FileRow(shown_path(file.path), file.size, file.kind, copies.status(file)) for file in files]
    return Listing(rows, listed.left_out)


def _rows_here(local_copy: LocalCopy, path: str | None, *, is_on_host: bool) -> list[FileRow]:
    kinds = {
        local_copy.artifacts: "artifact",
        local_copy.outputs: "output",
        local_copy.checkpoints: "checkpoint",
    }
    files = LocalCopies(local_copy).files()
    rows = []
    for folder, kind in kinds.items():
        base = local_copy.outputs if kind == "output" else local_copy.folder
        inside = [file for file in files if file.is_relative_to(folder)]
        rows += [
            FileRow(file.relative_to(base).as_posix(), files[file].st_size, kind, "yes") for file in inside
        ]
    if path is not None:
        plain = os.path.normpath(path)
        rows = [row for row in rows if row.path == plain or row.path.startswith(f"{plain}/")]
        if not rows:
            why = "does not answer" if is_on_host else "does not have the run"
            raise RunError(
                f"no {path} of {local_copy.short} is here, and its host {why}   launch ls {local_copy.short}"
            )
    return rows
