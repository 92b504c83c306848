"""How a container engine is reached, and where a run lies on its host: recorded with the run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.values.base import Record

Path = Annotated[str, Field(pattern=r"^/[^\x00]*$")]


class EngineWay(Record):
    """A host's container engine: its socket, or its program where the socket is closed; `sudo` runs the program as root."""

    name: str
    socket: Path | None = None
    program: Path | None = None
    sudo: bool = False


class AgentCode(Record):
    """Where an image's Python compiles a host's agent to: the agent's file, the folder, whose they are, and whether it is done."""

    agent: Path
    folder: Path
    uid: int
    gid: int
    there: bool


class RunLocation(Record):
    """Where a run lies on its host, and as which user it runs.

    `home` is HOME in the run's container. `root` labels what belongs to the host's root. A container mounts `read`
    read-only and `written` writable; what of the run's `path` is in neither it does not see.
    """

    path: Path
    home: Path
    agent: Path
    host_id: str
    root: str
    user: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    read: tuple[Path, ...] = ()
    written: tuple[Path, ...] = ()
