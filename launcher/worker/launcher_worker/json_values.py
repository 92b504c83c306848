"""Strict JSON: the form of metrics, and the digest of a JSON value."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Union


def scalar(name: str, value: Any) -> Union[bool, int, float, str]:
    """Convert a metric to strict JSON; a number that is not finite becomes the string nan, inf or -inf.

    Accepts torch and numpy scalars. Raises TypeError for anything that is not a number, a bool or a string.
    """
    if isinstance(value, (bool, int, str)):
        return value
    try:
        # Without detach() torch warns about a tensor that requires grad.
        number = float(value.detach() if hasattr(value, "detach") else value)
    except TypeError as error:
        raise TypeError(f"metric {name!r} must be a number, a bool or a string, not {value!r}") from error
    return number if math.isfinite(number) else str(number)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, which has the same form as the client's."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
