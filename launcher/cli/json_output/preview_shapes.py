"""`--dry-run`, `init` and `image` with --json."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.planning.software.wheel_choice import TorchChoice
from launcher.values.plan import Finding, Plan
from launcher.values.software.image import Image


class FileSize(Part):
    """A file and its bytes."""

    path: str
    bytes: int


class LeftOutPath(Part):
    """A path that does not travel; `key` is the job's key whose folder it is in, null for the code's."""

    key: str | None
    path: str
    why: str
    bytes: int | None
    at_least: bool


class SourceSize(Part):
    """Where the value of a key is from, and how much of it travels."""

    key: str
    written: str
    kind: str
    files: int
    bytes: int


class CargoShown(Part):
    """What travels. `left_out` ends after 1,000 paths, `left_out_count` counts all; `included` are credentials that a `.launchignore` names."""

    folder: str
    files: int
    bytes: int
    largest: list[FileSize]
    left_out: list[LeftOutPath]
    left_out_count: int
    included: list[LeftOutPath]
    sources: list[SourceSize]


class CargoWithPaths(CargoShown):
    """What travels, with every path of the code folder."""

    paths: list[str]


class ScriptSizes(Part):
    """The bytes of a session's script, as text, and of its parts. `tree` is null if `archived` bytes go into a dataset."""

    total: int
    most: int
    stub: int
    agent: int
    records: int
    tree: int | None
    archived: int


class SessionShown(Part):
    """The first session of a run on Kaggle: what is asked for, for how many hours, and with what script."""

    machine: str
    hours: float
    script: ScriptSizes
    quota: str


class RentalOption(Part):
    """A type of instance that will do: its price, where it is free, for how long it may be rented, and what that costs."""

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
    """What would be rented, the first one first, and the most that it may cost, whichever it is."""

    options: list[RentalOption]
    largest_cents: int
    confirm_above_cents: int


class PreviewShown(Shape):
    """`launch --dry-run`; `session` and `rental` are null for a host that has none."""

    kind: Literal["preview"] = "preview"
    plan: Plan
    digest: str
    findings: list[Finding]
    cargo: CargoWithPaths
    session: SessionShown | None
    rental: RentalShown | None


class Proposed(Shape):
    """`launch init`: the file that was written, and its defaults. The lines of its first run follow."""

    kind: Literal["init"] = "init"
    path: str
    host: str
    profile: str | None
    runtime: str


class ImageShown(Image):
    """`launch image show`: an image, and the torch in it; `wheels` is null for an image of yours."""

    version: Literal[1] = 1
    kind: Literal["image"] = "image"
    profile: str
    wheels: TorchChoice | None


class ImageRow(Part):
    """An image on a host, and how many containers use it."""

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
    """A thing and its bytes."""

    name: str
    bytes: int


class Pruned(Shape):
    """`launch image prune`."""

    kind: Literal["pruned"] = "pruned"
    host: str
    dry_run: bool
    bytes: int
    images: list[NamedSize]
