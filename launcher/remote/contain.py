"""The agent as a container's first program: what must be right in there before an attempt can be put on record."""

from __future__ import annotations

import os
import sys
import tempfile

from . import supervise


def main(arguments: list[str]) -> int:
    """Make one attempt of a run in its container; say it, and do not ask to be brought back, where nothing can be written."""
    path = os.path.abspath(arguments[0])
    for folder in (path, os.environ["HOME"]):
        try:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            who = "%d:%d" % (os.getuid(), os.getgid())
            sys.stderr.write("user %s cannot write to %s in here: %s\n" % (who, folder, error.strerror))
            return 0
    return supervise.main(arguments)
