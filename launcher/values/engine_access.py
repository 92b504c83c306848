"""How a run's container is reached and what it needs: a host's word on it, and what is put on record."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launcher.values.base import Record

Path = Annotated[str, Field(pattern=r"^/[^\x00]*$")]


class EngineWay(Record):
    """Which engine of a host, and how it is reached: its socket, else by its program, as root where the host says so."""

    name: str
    socket: Path | None = None
    program: Path | None = None
    sudo: bool = False


class Place(Record):
    """What a host tells of a run that it has made: the folders that its container needs, and as whom it is to run.

    `home` is the folder that the container's user has as HOME. `root` marks what belongs to the host's root. `read` are folders and files that are only read; `written` belong to
    the run's user.
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
