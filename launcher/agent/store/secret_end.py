"""Erase a run's secrets, after recording substitutes for file names that contain one."""

from __future__ import annotations

import contextlib

from ..record import secret
from ..record.rundir import Run


def forget_secrets(run: Run) -> None:
    """Erase the secrets of a run, after recording its file names that contain one.

    Raises OSError if the secrets cannot be erased.
    """
    if secret.read(run):
        from .outputs import OutputDigests, OutputScan  # imported here: few runs have secrets

        with contextlib.suppress(OSError):  # with a full disk, clients will see these names
            for _ in OutputScan(run, OutputDigests(run), matches_all=True).outputs():
                pass
    secret.erase(run)
