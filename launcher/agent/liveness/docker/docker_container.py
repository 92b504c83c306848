"""A container as its engine reports it, and the verdict on its run."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..liveness import ALIVE, COMING_BACK

LIVENESS = {"running": ALIVE, "paused": ALIVE, "restarting": COMING_BACK, "stopped": COMING_BACK}
"""The verdict by a container's status. With any other status, including `created`, only a client starts the container.

`stopped` is Podman's: the program has ended, and Podman has not yet started it again or called it `exited`.
"""

Access = Mapping[str, Any]
"""How to reach an engine, from a run's record: {"name", "socket", "program", "sudo"}."""
Container = Dict[str, Any]
"""{"status", "exit", "oom", "error", "finished"}, as shown to people and kept as evidence."""


class EngineSilentError(Exception):
    """Raised when an engine does not answer, so that the state of its containers is unknown."""
