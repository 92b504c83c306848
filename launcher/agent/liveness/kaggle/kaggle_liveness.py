"""Runs in Kaggle sessions: the kernel prints the run's record, and Kaggle reports the session's status."""

from __future__ import annotations

from ..spooled import Spooled

PROBE = Spooled()
