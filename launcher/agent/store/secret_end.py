"""The end of a run's secrets: they are erased, and the names of files that hold one are noted before."""

from __future__ import annotations

import contextlib

from ..record import secret
from ..record.rundir import Run


def forget_secrets(run: Run) -> None:
    """Erase the secrets of a run, having noted the names of its files that hold one. Raises OSError if they cannot be erased."""
    if secret.read(run):
        from .output_digests import OutputDigests  # few runs have secrets
        from .outputs import OutputScan

        with contextlib.suppress(OSError):  # a full disk: such names are shown then
            for _ in OutputScan(run, OutputDigests(run), matches_all=True).outputs():
                pass
    secret.erase(run)
