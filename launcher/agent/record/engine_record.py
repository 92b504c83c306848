"""How a container engine is reached: a part of a run's record, and of requests that are checked when they arrive."""

from __future__ import annotations

from typing import Optional, TypedDict


class EngineRecord(TypedDict, total=False):
    """How the engine of a container is reached: by a program or a socket, and whether with sudo."""

    name: str
    program: str
    socket: Optional[str]
    sudo: bool
