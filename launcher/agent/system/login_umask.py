"""Two umasks: the agent's own, under which nobody else can read what it makes, and the login's, for the user's programs.

A script that writes into a folder that colleagues share must not write files there that only its user can read.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

PRIVATE = 0o077
NAME = "LAUNCH_UMASK"
"""The variable that carries the login's umask from one of our processes to the next. The user's programs do not get it."""


def make_private() -> None:
    """Give this process, and those that it starts, the private umask; note the one that it got from its login."""
    os.environ[NAME] = "%03o" % os.umask(PRIVATE)


@contextlib.contextmanager
def login_umask() -> Iterator[None]:
    """Start a process of the user's in this block. Popen's `umask` is missing in Python 3.8."""
    private = os.umask(int(os.environ.get(NAME, "%o" % PRIVATE), 8))
    try:
        yield
    finally:
        os.umask(private)
