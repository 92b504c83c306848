"""A machine: this computer, or one over SSH. It supports every command."""

from __future__ import annotations

from launcher.backends.base.backend import Backend

BACKEND = Backend()
