"""The settings of one segment: the `segment.json` of its payload, which the agent in the session reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.values.base import StrictModel, canonical_json
from launcher.values.plan import SegmentCards, TorchWheel

TREE_SUFFIX = ".tree"
"""Kaggle does not unpack an archive with this suffix in a dataset."""


class SegmentTree(StrictModel):
    """An archive of the run's work/ below a session's inputs: its file name, and its SHA-256 in hex."""

    file: Annotated[str, Field(pattern=r"^launch-[0-9a-f]{16}\.tree$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def dataset(self) -> str:
        """The slug of the dataset that holds only this archive."""
        return self.file.removesuffix(TREE_SUFFIX)


class SegmentSettings(StrictModel):
    """A segment's settings. The segment must end within `session_s` seconds of its script's start.

    Without `cards` it uses no card. `earlier`: the outputs of an earlier segment must be among the inputs.
    `requirements` are installed if the session's Python lacks them, `torch` if the session's torch has no code
    for the card.
    """

    version: Literal[1] = 1
    run: str
    segment: Annotated[int, Field(ge=1)]
    session_s: Annotated[float, Field(gt=0)]
    place_id: str
    internet: bool
    tree: SegmentTree | None = None
    earlier: bool = False
    cards: tuple[SegmentCards, ...] = ()
    requirements: tuple[str, ...] = ()
    torch: tuple[TorchWheel, ...] = ()

    def to_file(self) -> bytes:
        """Return the content of segment.json. The same settings give the same bytes."""
        return f"{canonical_json(self)}\n".encode()
