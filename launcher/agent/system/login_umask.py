"""Two umasks: a private one for the agent's files, and the login's for the user's programs.

A script that writes into a folder shared with colleagues must not create files there that only its user can
read.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

PRIVATE = 0o077
NAME = "LAUNCH_UMASK"
"""The variable that passes the login's umask between the launcher's processes. User programs do not get it."""


def make_private() -> None:
    """Give this process and its children the private umask. Store the umask that it got from its login."""
    os.environ[NAME] = "%03o" % os.umask(PRIVATE)


@contextlib.contextmanager
def login_umask() -> Iterator[None]:
    """Start a user process in this block. Popen's `umask` is missing in Python 3.8."""
    private = os.umask(int(os.environ.get(NAME, "%o" % PRIVATE), 8))
    try:
        yield
    finally:
        os.umask(private)
