"""Two limits of core dumps: none of our own processes, whose memory holds secrets, and the login's for a training without any.

A command loads this before anything else, so it uses only what Python has loaded by itself: `typing` and `contextlib` take 5 ms.
"""

from __future__ import annotations

import os
import resource
import sys

NAME = "LAUNCH_CORE_LIMIT"
"""The variable that carries the login's limit from one of our processes to the next. The user's programs do not get it."""
_OFF = 1 if sys.platform.startswith("linux") else 0
"""In bytes. With 1 the kernel also starts no program that `core_pattern` names (fs/coredump.c); with 0 it does."""


def turn_off() -> None:
    """Let this process, and those that it starts, leave no core dump; note the limit that it got from its login."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    os.environ.setdefault(NAME, str(soft))
    _limit(_OFF, hard)


class LoginLimit:
    """Start a process of the user's in this block."""

    def __enter__(self) -> None:
        self._soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        _limit(int(os.environ.get(NAME, str(self._soft))), hard)

    def __exit__(self, *_error: object) -> None:
        _limit(self._soft, resource.getrlimit(resource.RLIMIT_CORE)[1])


def _limit(soft: int, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, _pair(soft, hard))


def _pair(soft: int, hard: int) -> tuple[int, int]:
    """Return a soft limit that its hard one allows, with that one, which stays as it is."""
    if hard == resource.RLIM_INFINITY:
        return soft, hard
    return (hard if soft == resource.RLIM_INFINITY else min(soft, hard)), hard
