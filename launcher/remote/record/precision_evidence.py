"""What a host knows of precisions: a file for each card, driver, torch build, model, trainables and precision.

    <root>/hosts/<host-id>/evidence/<sha256>.json    {"card", "driver", "key", "proof", "failed", "run", "time"}

`proof` is what the worker saw in the first good steps, `failed` the class that it ended in later, or None.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from typing import Any

from . import strict_json
from .rundir import paths_in, read_text, write_durably

MOST_BYTES = 64 * 1024
MOST_FILES = 1000
_DRIVER = "/proc/driver/nvidia/version"


def keep(folder: str, record: dict[str, Any]) -> str | None:
    """Write a record in place of an older one of the same key, card and driver; return its path.

    One that is too large is not kept (None). Beyond MOST_FILES the oldest go. Raises OSError if the disk refuses.
    """
    record = strict_json.decode(strict_json.encode(record))  # a number too large for a float is a text now
    named = {name: record.get(name) for name in ("key", "card", "driver")}
    name = hashlib.sha256(_canonical(named).encode()).hexdigest()
    text = _canonical(record)
    if len(text) > MOST_BYTES:
        return None
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    write_durably(path, text + "\n")
    kept = [one for one in paths_in(folder) if one.endswith(".json")]
    for one in sorted(kept, key=_age)[: max(0, len(kept) - MOST_FILES)]:
        with contextlib.suppress(FileNotFoundError):  # another run's agent was quicker
            os.unlink(one)
    return path


def driver() -> str | None:
    """Return the version of the NVIDIA driver that is loaded, None where there is none (Linux tells it in /proc)."""
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", read_text(_DRIVER) or "")
    return found[0] if found else None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _age(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0
