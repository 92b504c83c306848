"""The output of `--json`: one object per line, `version` and `kind` first. See `json_output/` for the shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def answer(shape: BaseModel) -> None:
    """Print a shape as one line of JSON."""
    print(json.dumps(plain(shape)), flush=True)


def plain(shape: BaseModel) -> dict[str, Any]:
    """Return a shape as plain values, `version` and `kind` first."""
    values = shape.model_dump(mode="json", by_alias=True)
    return {"version": values.pop("version"), "kind": values.pop("kind"), **values}
