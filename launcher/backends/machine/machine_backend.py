"""A machine: this computer, or one over SSH. It can do every verb."""

from __future__ import annotations

from launcher.backends.backend import Backend

BACKEND = Backend()
