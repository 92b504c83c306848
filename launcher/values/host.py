"""Hosts: the address of a machine, and how to run jobs on it."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from launcher.values import login_text
from launcher.values.base import Written
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.slurm_settings import SlurmSettings
from launcher.values.software.image import Build

Kind = Literal["machine", "kaggle", "lambda-cloud", "slurm"]
_OWN_RUNTIMES = {
    "kaggle": "a kernel is Kaggle's own container",
    "slurm": "Slurm starts the job on a node of its own",
}
"""The kinds that have a runtime of their name besides `auto`, and no other, and why."""
HOLD_S, MOST_HOLD_S = 60, 3600
"""How long a connection is kept for the next command, in seconds, by default and at most."""


def _engine(written: str) -> str:
    if not re.fullmatch(r"docker|/[^\x00-\x1f\x7f]{1,106}", written):
        raise ValueError("expected docker, or the absolute path of an engine's socket")
    return written


def _root(written: str) -> str:
    if not written.startswith(("/", "~")):
        raise ValueError("expected an absolute path, or one that begins with ~/")
    return written


class MachineKeys(Written):
    """How one logs in to a machine and runs jobs there, as written in a `[hosts.NAME]` table.

    `python` is the agent's interpreter; `environment` is the job's: an environment's folder, or its interpreter. `runtime`
    is the name of a module of launcher/runtimes, or `auto`: a container if another machine has a usable engine. `engine` is
    docker or the path of a socket; `sudo` means that it is reached with `sudo -n`.
    """

    user: Annotated[str, AfterValidator(login_text.user)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: str | None = None
    root: Annotated[str, AfterValidator(_root)] = "~/.launch"
    python: str | None = None
    environment: Annotated[str | None, Field(validation_alias=AliasChoices("environment", "env"))] = None
    runtime: str = "auto"
    engine: Annotated[str, AfterValidator(_engine)] | None = None
    sudo: bool = False
    build: Build = Build()
    profile: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _environment_is_given_once(cls, table: Any) -> Any:
        if isinstance(table, dict) and {"environment", "env"} <= table.keys():
            raise ValueError("`env` is the old name of `environment`: remove `env`")
        return table


class Host(MachineKeys):
    """A machine, a Slurm cluster, or an account: of Kaggle's, or one where machines are rented. Settings of a kind have a field of their own.

    For an account where machines are rented the keys of a machine are those of what is rented, whose address is known once
    it is. A cluster is its login node, which submits jobs. `address` None means this machine, if it is one. An alias of ~/.ssh/config is a host whose address is the alias.
    `variables`: which of this process's variables a run on this machine gets. `hold`: how many seconds a connection over SSH
    is kept for the next command, 0 for not at all.
    """

    name: Annotated[str, Field(min_length=1)]
    kind: Kind = "machine"
    kaggle: KaggleSettings | None = None
    lambda_cloud: LambdaSettings | None = None
    slurm: SlurmSettings | None = None
    address: Annotated[str, AfterValidator(login_text.address)] | None = None
    known_hosts: str | None = None
    variables: Literal["listed", "inherit"] = "listed"
    hold: Annotated[int, Field(ge=0, le=MOST_HOLD_S)] = HOLD_S

    @field_validator("variables")
    @classmethod
    def _only_this_machine_inherits(cls, written: str, info: ValidationInfo) -> str:
        if written == "inherit" and info.data.get("address") is not None:
            raise ValueError("a run on another machine inherits no variables from here; use -e NAME=VALUE")
        return written

    @model_validator(mode="after")
    def _has_what_its_kind_has(self) -> Host:
        if (self.kind == "kaggle") != (self.kaggle is not None):
            raise ValueError("the settings of Kaggle are for kind 'kaggle', and only there")
        if self.kaggle is not None and (self.address is not None or self.environment is not None):
            raise ValueError("a host of kind 'kaggle' has no address and no environment")
        if (self.kind == "lambda-cloud") != (self.lambda_cloud is not None):
            raise ValueError("the settings of Lambda Cloud are for kind 'lambda-cloud', and only there")
        if self.lambda_cloud is not None and (self.address is not None or self.known_hosts is not None):
            raise ValueError(
                "a host of kind 'lambda-cloud' has no address and no known_hosts: each rental has"
            )
        if (self.kind == "slurm") != (self.slurm is not None):
            raise ValueError("the settings of Slurm are for kind 'slurm', and only there")
        if self.slurm is not None and self.variables == "inherit":
            raise ValueError("a job of Slurm's inherits no variables from here; use -e NAME=VALUE")
        if objection := runtime_objection(self.kind, self.runtime):
            raise ValueError(objection)
        return self

    @model_serializer(mode="wrap")
    def _without_other_kinds(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write a host without the keys of other kinds, which older versions would refuse in a run's record."""
        values: dict[str, Any] = write(self)
        for key in ("kaggle", "lambda_cloud", "slurm"):
            if getattr(self, key) is None:
                del values[key]
        if self.kind == "machine":
            del values["kind"]
        if self.hold == HOLD_S:
            del values["hold"]
        return values

    @property
    def is_local(self) -> bool:
        """Whether this is the machine that `launch` itself runs on, or the cluster of which it is a login node."""
        return self.kind in ("machine", "slurm") and self.address is None

    def by_hand(self, command: str) -> str:
        """Return the shell command that runs a command there, with ssh itself if that is another machine."""
        if self.address is None:
            return command
        words = ["-i", self.identity_file] if self.identity_file else []
        if self.known_hosts:
            # ssh takes several files, with spaces between.
            file = f'"{self.known_hosts}"' if " " in self.known_hosts else self.known_hosts
            words += ["-o", f"UserKnownHostsFile={file}"]
        words += ["-p", str(self.port)] if self.port else []
        login = f"{self.user}@{self.address}" if self.user else self.address
        return f"{shlex.join(['ssh', *words, login])} {command}"


def runtime_objection(kind: Kind, runtime: str) -> str | None:
    """Return why a host of this kind cannot have a runtime; None if it can."""
    if kind in _OWN_RUNTIMES and runtime not in ("auto", kind):
        return f"{_OWN_RUNTIMES[kind]}: expected auto or {kind}"
    if runtime in _OWN_RUNTIMES and runtime != kind:
        return f'runtime {runtime} is for a host with kind = "{runtime}"'
    return None


LOCAL = Host(name="local")
"""This machine, which needs no entry in a file."""

KAGGLE = Host(name="kaggle", kind="kaggle", kaggle=KaggleSettings())
"""The account of Kaggle's that this person has credentials for; it needs no entry in a file either."""
