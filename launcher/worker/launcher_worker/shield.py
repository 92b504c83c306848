"""Keep errors of the start-up hook away from the script."""

from __future__ import annotations

import contextlib
from typing import Optional

from .channel import send

SOURCE = "hook"
"""The source of all events of the hook."""


class _Shield(contextlib.ContextDecorator):
    """A context that keeps the hook's errors from the script, and records the first."""

    def __init__(self) -> None:
        self._has_reported = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: Optional[BaseException], _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_reported:
            self._has_reported = True
            with contextlib.suppress(Exception):
                send("evidence", values={"hook": f"{type(error).__name__}: {error}"[:500]}, source=SOURCE)
        return True


shielded = _Shield()
"""A decorator, or a context, for the hook's functions."""
