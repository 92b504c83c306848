"""Read a JSON object from a file that may be missing, incomplete or written by another program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.base.client_files import read_regular

JsonObject = dict[str, Any]
"""A JSON object whose keys the launcher does not define.

Examples are the contents of an event or evidence, arguments and answers of an agent, a file of unknown
origin.
"""
MAX_BYTES = 256 << 20
"""The maximum size of a file, in bytes. A larger one is read as an empty object."""

_LONE = re.compile("[\\ud800-\\udfff]")


def read_json(path: Path) -> JsonObject:
    """Return the object in a file; empty if the file is missing, not regular or not an object."""
    try:
        return parse_object(read_regular(str(path), MAX_BYTES))
    except OSError:
        return {}


def parse_object(data: bytes) -> JsonObject:
    """Return the JSON object in some bytes; empty if they are anything else."""
    try:
        value = well_formed(json.loads(data), data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def well_formed(value: Any, text: bytes) -> Any:
    """Return a value read from JSON `text`, with each lone surrogate replaced by a question mark.

    An agent in Python writes one for a byte of a path that is not UTF-8. No encoder here takes it.
    """
    return _replaced(value) if b"\\ud" in text or b"\\uD" in text else value


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if _LONE.search(value) else value
    if isinstance(value, dict):
        return {_replaced(key): _replaced(inner) for key, inner in value.items()}
    return [_replaced(inner) for inner in value] if isinstance(value, list) else value


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in a tree of objects, with its path. Lists count as values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value
