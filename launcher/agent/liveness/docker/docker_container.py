"""A container as its engine tells of it, and what that means for its run."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..liveness import ALIVE, COMING_BACK

FATES = {"running": ALIVE, "paused": ALIVE, "restarting": COMING_BACK}
"""The fate of a container by its status; with any other status, `created` too, nothing starts it but a client."""

Access = Mapping[str, Any]
"""How to reach an engine, as a run's record has it: {"socket", "program", "sudo"}."""
Container = Dict[str, Any]
"""{"status", "exit", "oom", "error", "finished"}, as shown to people and kept as evidence."""


class EngineSilentError(Exception):
    """Raised when an engine does not answer, so that the state of its containers is unknown."""
