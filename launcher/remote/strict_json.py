"""JSON as every file and every line of ours is written: no NaN tokens; a non-finite number is a string."""

from __future__ import annotations

import json
import math
from typing import Any


def encode(value: Any) -> str:
    """Write a value as one line of strict JSON; non-finite numbers become "nan", "inf" or "-inf"."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def decode(text: str | bytes) -> Any:
    """Read strict JSON. Raises ValueError for anything else, the tokens NaN and Infinity included."""
    return json.loads(text, parse_constant=_refuse)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def _refuse(token: str) -> Any:
    raise ValueError("not strict JSON: " + token)
