"""Variables that this process sets only for itself: neither jobs nor other commands inherit them."""

from __future__ import annotations

import os

_own: set[str] = set()


def set_own(name: str, value: str) -> None:
    """Set a variable, unless the user has set it."""
    if name not in os.environ:
        os.environ[name] = value
        _own.add(name)


def inherited() -> dict[str, str]:
    """Return the variables that this process was started with."""
    return {name: value for name, value in os.environ.items() if name not in _own}
