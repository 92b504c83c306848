"""The access to a container engine, and a run's location on its host: recorded with the run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.values.base import Record

Path = Annotated[str, Field(pattern=r"^/[^\x00]*$")]


class EngineAccess(Record):
    """A host's container engine: its socket, or its program if the socket is not accessible; `sudo` runs the program as root."""

    name: str
    socket: Path | None = None
    program: Path | None = None
    sudo: bool = False


class AgentCode(Record):
    """The compiled code of a host's agent for an image's Python: the agent's file, the folder of the code, and its owner.

    If `there` is true, the compiled files already exist.
    """

    agent: Path
    folder: Path
    uid: int
    gid: int
    there: bool


class RunLocation(Record):
    """A run's location on its host, and the user that it runs as.

    `home` is HOME in the run's container. `root` is the label of items that belong to the host's root. A
    container mounts `read` read-only and `written` writable; it does not see other parts of the run's `path`.
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
