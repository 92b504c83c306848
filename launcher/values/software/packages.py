"""The packages of a Python in a new image or environment, as reported by agent/making/torch_check.py or installed_torch.py."""

from __future__ import annotations

from launcher.values.base import Record
from launcher.values.reported.engine_access import AgentCode


class InstalledPackages(Record):
    """A Python's version, its torch with the CUDA and architectures that it was built for, and the output of `pip check`.

    `architectures` is None if torch was not imported. `conflicts` is None without pip. `error` says why torch
    cannot be imported.
    """

    python: str
    torch: str | None = None
    cuda: str | None = None
    architectures: tuple[str, ...] | None = ()
    conflicts: tuple[str, ...] | None = None
    error: str | None = None


class KnownImage(Record):
    """A host's facts about an image: its packages, once they are recorded, and the folder of its compiled agent, if any."""

    packages: InstalledPackages | None = None
    code: AgentCode | None = None
