"""How to reach a container engine: part of a run's record, and of requests, which are checked on arrival."""

from __future__ import annotations

from typing import Optional, TypedDict


class EngineRecord(TypedDict, total=False):
    """How to reach a container engine: by a program or a socket, and whether with sudo."""

    name: str
    program: str
    socket: Optional[str]
    sudo: bool
