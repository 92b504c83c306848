"""The launcher's version and commit as text."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import launcher
from launcher.upload.git_rules import commit_of

_COMMIT = re.compile("[0-9a-f]{7,64}")


def version_text() -> str:
    """Return the version, with the commit if it is known: from the build's record, or from the checkout."""
    package = Path(launcher.__file__).resolve().parent
    recorded = ""
    with contextlib.suppress(OSError):  # a checkout has no such file
        recorded = (package / "commit").read_text(errors="replace").strip()
    if _COMMIT.fullmatch(recorded):
        return f"{launcher.__version__}, commit {recorded}"
    is_checkout = (
        package.parent / ".git"
    ).exists()  # not the repository of a project that has launcher in its environment
    commit = commit_of(package.parent) if is_checkout else None
    return f"{launcher.__version__}, checked out at {commit}" if commit else launcher.__version__
