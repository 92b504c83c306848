"""`--json` output of `ls`, `pull`, `cp` and `forward`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.runs.pull.file_listing import FileRow


class Files(Shape):
    """`launch ls`. `left_out` are paths that could not be read, with the reasons."""

    kind: Literal["files"] = "files"
    run: str
    files: list[FileRow]
    left_out: dict[str, str]


class PulledFile(Part):
    """A downloaded file."""

    path: str
    size: int
    sha256: str
    here: str


class StayedFile(Part):
    """A file that stayed on the host."""

    path: str
    size: int


class PulledFiles(Shape):
    """`launch pull`: `files` were downloaded, `present` counts those already here, the others stay on the host.

    `yours` are locally changed files, which were not replaced.
    """

    kind: Literal["pulled"] = "pulled"
    run: str
    files: list[PulledFile]
    present: int
    over_limit: list[StayedFile]
    checkpoints: list[StayedFile]
    left_out: dict[str, str]
    yours: list[str]


class CopiedFiles(Shape):
    """`launch cp`."""

    kind: Literal["copied"] = "copied"
    run: str
    path: str
    files: int
    bytes: int
    here: str


class Forwarding(Shape):
    """`launch forward`: the local address that is forwarded to port `to` beside the run."""

    kind: Literal["forward"] = "forward"
    run: str
    address: str
    port: int
    to: int
