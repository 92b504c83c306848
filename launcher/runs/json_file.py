"""A JSON object in a file that may be missing, torn or another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if the file is missing or not an object."""
    try:
        return parse_object(path.read_bytes())
    except OSError:
        return {}


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in some bytes; empty if they are anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
