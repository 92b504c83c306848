"""The base types of `--json` output. See docs/json.md."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of an output object. Unknown keys of a dict are errors; other attributes of a result are ignored."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, from_attributes=True
    )


class Shape(Part):
    """An object that is printed on one line."""

    version: Literal[1] = 1
    kind: str
