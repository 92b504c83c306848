"""The table of a toy host: a machine with a spooler, whose key `depth` says how many jobs it may have in line."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from launcher.values.base import StrictModel
from launcher.values.host import Host, HostKind


class ToySettings(StrictModel):
    """What a table of this kind has besides the keys of all hosts."""

    depth: Annotated[int, Field(ge=1)] = 4


class ToyHost(Host):
    """This machine, under a spooler."""

    why_own_runtime = "its spooler starts the agent"

    kind: Literal["toy"] = "toy"
    toy: ToySettings


class _Table(ToySettings):
    kind: Literal["toy"]
    profile: str | None = None
    runtime: Literal["auto", "toy"] = "auto"


class ToyKind(HostKind):
    """A toy."""

    title = "a toy with a spooler"
    host = ToyHost
    key = "toy"
    settings = ToySettings
    table = _Table
    foreign: ClassVar = {"engine": "a spooler starts processes, and no container"}
    free = ("kind", "depth")
    has_runtimes = False


KIND = ToyKind()
