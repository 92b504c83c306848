"""Strict JSON, the format of all files and lines that the launcher writes: non-finite numbers are strings."""

from __future__ import annotations

import json
import math
from typing import Any, Dict

JsonObject = Dict[str, Any]
"""A JSON object without fixed keys: an event's values, evidence, a verb's arguments and its answer."""


def encode(value: Any) -> str:
    """Write a value as one line of strict JSON; non-finite numbers become "nan", "inf" or "-inf"."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_finite(value))


def decode(text: str | bytes) -> Any:
    """Read strict JSON, in UTF-8. Raises ValueError for anything else, including the tokens NaN and Infinity."""
    text = text if isinstance(text, str) else text.decode()
    try:
        if text.startswith("{"):
            value, end = _DECODER.raw_decode(text)  # a third faster than `decode`, which also skips blanks
            if end == len(text):
                return value
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _finite(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(element) for element in value]
    return value


def _refuse(token: str) -> Any:
    raise ValueError("not strict JSON: " + token)


# Made once: json.dumps and json.loads make a new one for each call with options.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse)
