"""Runs in sessions of Kaggle's: its kernels print what becomes of them, and Kaggle says how a session is."""

from __future__ import annotations

from ..spooled import Spooled

PROBE = Spooled()
