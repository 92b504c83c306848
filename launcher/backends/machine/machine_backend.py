"""A machine: this computer, or one over SSH. It can do every verb."""

from __future__ import annotations

from launcher.backends.base.backend import Backend

BACKEND = Backend()
