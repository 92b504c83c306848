"""Runs on Kaggle: warn that this backend is untested, and that a stop deletes the session."""

from __future__ import annotations

from launcher.backends.base.running import Running
from launcher.backends.kaggle.kaggle_host import KaggleHost
from launcher.copy import index

UNTRIED = "launcher's Kaggle backend was never tried against the real service, only against a simulation: please report every difference"


class KaggleRunning(Running):
    """The running part for an account."""

    stop_loses = (
        "Kaggle ends a session only by deleting it: its printed output stays on this computer, "
        "its files, checkpoints included, are lost"
    )

    def first_note(self) -> str | None:
        """Return the warning that this backend is untested, until a run of an account is in the index."""
        return None if any(isinstance(entry.host, KaggleHost) for entry in index.entries()) else UNTRIED
