"""What a verb says with --json: one object a line, with its version and its kind first."""

from __future__ import annotations

import json
from typing import Any

VERSION = 1


def answer(kind: str, **values: Any) -> None:
    """Print an object. It has the keys of its kind, whatever was found; see docs/records-and-json.md."""
    print(json.dumps({"version": VERSION, "kind": kind, **values}))
