"""Core dump limits: none for the launcher's processes, and the login's for a training without secrets.

The memory of the launcher's processes holds secrets. Every command loads this first, so it uses only modules
that Python has already loaded: `typing` and `contextlib` take 5 ms.
"""

from __future__ import annotations

import os
import resource
import sys

NAME = "LAUNCH_CORE_LIMIT"
"""The variable that passes the login's limit between the launcher's processes. User programs do not get it."""
_OFF = 1 if sys.platform.startswith("linux") else 0
"""In bytes. With 1 the kernel does not start `core_pattern`'s program either (fs/coredump.c); with 0 it does."""


def turn_off() -> None:
    """Disable core dumps of this process and its children. Store the limit that it got from its login."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    os.environ.setdefault(NAME, str(soft))
    _limit(_OFF, hard)


class LoginLimit:
    """Start a user process in this block."""

    def __enter__(self) -> None:
        self._soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        _limit(int(os.environ.get(NAME, str(self._soft))), hard)

    def __exit__(self, *_error: object) -> None:
        _limit(self._soft, resource.getrlimit(resource.RLIMIT_CORE)[1])


def _limit(soft: int, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, _pair(soft, hard))


def _pair(soft: int, hard: int) -> tuple[int, int]:
    """Return a soft limit that fits the hard limit, and the unchanged hard limit."""
    if hard == resource.RLIM_INFINITY:
        return soft, hard
    return (hard if soft == resource.RLIM_INFINITY else min(soft, hard)), hard
