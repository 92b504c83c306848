"""The configuration table of a Slurm cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from launcher.errors import BadFileError
from launcher.values.host import HOLD_S, MAX_HOLD_S, Address, Host, HostKind, MachineKeys
from launcher.values.parsing import build
from launcher.values.slurm_settings import SlurmSettings
from launcher.values.software.image import Build

_PROCESSES = "a Slurm job runs as processes of its node, without a container of launcher"


class _Table(SlurmSettings, MachineKeys):
    """A table as written in the file: the Slurm settings beside the keys of the login node.

    Its key `build` is the one of the Slurm settings.
    """

    kind: Literal["slurm"]
    address: Address | None = None
    known_hosts: str | None = None
    hold: Annotated[int, Field(ge=0, le=MAX_HOLD_S)] = HOLD_S


class SlurmHost(Host):
    """A cluster, represented by its login node, which submits jobs."""

    has_queue = True
    why_own_runtime = "Slurm starts the job on a node of its own"

    kind: Literal["slurm"] = "slurm"
    slurm: SlurmSettings

    @model_validator(mode="after")
    def _inherits_nothing(self) -> Self:
        if self.variables == "inherit":
            raise ValueError("a job of Slurm's inherits no variables from here; use -e NAME=VALUE")
        return self


class SlurmKind(HostKind):
    """The kind of host for clusters."""

    title = "a Slurm cluster"
    host = SlurmHost
    key = "slurm"
    settings = SlurmSettings
    table = _Table
    foreign: ClassVar = {
        "engine": _PROCESSES,
        "sudo": _PROCESSES,
        "variables": "a job of Slurm's inherits no variables from here; use -e NAME=VALUE",
    }
    free = ("partition", "account", "qos", "time", "nodes", "gres", "constraint", "reservation")
    has_runtimes = False

    def read(self, name: str, written: Mapping[str, Any], *, file: str, text: str) -> Host:
        """Return the host of a table.

        `[hosts.NAME.build]` has the options for building environments; its key `where` selects the node.
        """
        making = written.get("build")
        if not isinstance(making, Mapping):
            return super().read(name, written, file=file, text=text)
        prefix = f"hosts.{name}.build."
        for key in ("base", "network"):
            if key in making:
                raise BadFileError(
                    f"{file}: {prefix}{key}: no image is built on a cluster\n"
                    "  known: where ('login' or 'job'), pip_conf, ca_bundle, proxy, torch_index"
                )
        others = {key: value for key, value in written.items() if key != "build"}
        if "where" in making:
            others["build"] = making["where"]
        host = super().read(name, others, file=file, text=text)
        options = {key: value for key, value in making.items() if key != "where"}
        return host.model_copy(update={"build": build(Build, options, file=file, text=text, prefix=prefix)})


KIND = SlurmKind()
