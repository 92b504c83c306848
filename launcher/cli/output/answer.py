"""What a verb says with --json: one object a line, with its version and its kind first; see shapes/."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def answer(shape: BaseModel) -> None:
    """Print an answer."""
    print(json.dumps(plain(shape)), flush=True)


def plain(shape: BaseModel) -> dict[str, Any]:
    """Return an answer as plain values."""
    values = shape.model_dump(mode="json", by_alias=True)
    return {"version": values.pop("version"), "kind": values.pop("kind"), **values}
