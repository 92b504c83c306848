"""The root of what a verb prints with --json. See docs/records-and-json.md."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of an answer. Unknown keys are errors; of a result that is no dict, other attributes are not shown."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, from_attributes=True
    )


class Shape(Part):
    """What is printed as one object on one line."""

    version: Literal[1] = 1
    kind: str
