"""`--json` output of `--dry-run`, `init` and `image`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.planning.software.wheel_choice import TorchChoice
from launcher.values.plan import Finding, Plan
from launcher.values.software.image import Image


class FileSize(Part):
    """A file and its size in bytes."""

    path: str
    bytes: int


class LeftOutPath(Part):
    """A path that is not uploaded. `key` is the job's key whose folder contains it, null for the code folder."""

    key: str | None
    path: str
    why: str
    bytes: int | None
    at_least: bool


class SourceSize(Part):
    """The source of a key's value, and the size of its upload."""

    key: str
    written: str
    kind: str
    files: int
    bytes: int


class UploadShown(Part):
    """An upload. `left_out` has at most 1,000 paths, `left_out_count` counts all.

    `included` are credentials that are uploaded because a `.launchignore` names them.
    """

    folder: str
    files: int
    bytes: int
    largest: list[FileSize]
    left_out: list[LeftOutPath]
    left_out_count: int
    included: list[LeftOutPath]
    sources: list[SourceSize]


class UploadWithPaths(UploadShown):
    """An upload, with every uploaded path of the code folder."""

    paths: list[str]


class ScriptSizes(Part):
    """The sizes in bytes of a session's script and its parts.

    `tree` is the part with code and data. It is null if they are in a dataset instead, of `archived` bytes before compression.
    """

    total: int
    most: int
    stub: int
    agent: int
    records: int
    tree: int | None
    archived: int


class SessionShown(Part):
    """The first Kaggle session of a run: the machine and hours requested, and the script's size."""

    machine: str
    hours: float
    script: ScriptSizes
    quota: str


class RentalOption(Part):
    """A suitable instance type: its price, the regions with free instances, the longest rental in hours, and the cost."""

    type: str
    profile: str
    cards: int
    regions: list[str]
    cents_per_hour: int
    hours: float
    expected_cents: int | None
    why_expected: str | None
    largest_cents: int


class RentalShown(Part):
    """The machines that would be rented, in the order of trial, and the maximum cost of any of them."""

    options: list[RentalOption]
    largest_cents: int
    confirm_above_cents: int


class PreviewShown(Shape):
    """`launch --dry-run`. `session` and `rental` are null for a host without them, `job_script` for one without a scheduler."""

    kind: Literal["preview"] = "preview"
    plan: Plan
    digest: str
    findings: list[Finding]
    cargo: UploadWithPaths
    session: SessionShown | None
    rental: RentalShown | None
    job_script: str | None


class Proposed(Shape):
    """`launch init`: the file written, and its defaults. The lines of the first run follow."""

    kind: Literal["init"] = "init"
    path: str
    host: str
    profile: str | None
    runtime: str


class ImageShown(Image):
    """`launch image show`: an image, and its torch. `wheels` is null for the user's image."""

    version: Literal[1] = 1
    kind: Literal["image"] = "image"
    profile: str
    wheels: TorchChoice | None


class ImageRow(Part):
    """An image on a host, and the number of containers that use it."""

    name: str
    bytes: int
    created: float
    containers: int


class Images(Shape):
    """`launch image list`."""

    kind: Literal["images"] = "images"
    host: str
    images: list[ImageRow]


class NamedSize(Part):
    """A name and a size in bytes."""

    name: str
    bytes: int


class Pruned(Shape):
    """`launch image prune`."""

    kind: Literal["pruned"] = "pruned"
    host: str
    dry_run: bool
    bytes: int
    images: list[NamedSize]
