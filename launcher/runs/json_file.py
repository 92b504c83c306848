"""A JSON object in a file that may be missing, torn or another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.bounded_read import read_bounded
from launcher.errors import BadFileError

MOST_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if the file is missing, not a regular one, or not an object."""
    try:
        value = json.loads(read_bounded(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError, BadFileError):
        return {}
    return value if isinstance(value, dict) else {}
