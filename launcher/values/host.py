"""Hosts: the address of a machine, and how to run jobs on it. Each kind of host has its own keys in `[hosts.NAME]`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from launcher.backends.kinds import PACKAGES, host_kind, own_runtime
from launcher.errors import BadFileError
from launcher.values.base import StrictModel
from launcher.values.parsing import build
from launcher.values.software.image import Build

# The rules of OpenSSH (ssh_valid_hostname and ssh_valid_ruser in its readconf.c): the shell of a
# ProxyCommand reads both texts.
_NO_ADDRESS = re.compile(r"""^-|^\Z|['`"$\\;&<>|(){},\s\x00-\x1f\x7f]""")
_NO_USER = re.compile(r"""^-|['`";&<>|(){}\x00-\x1f\x7f]|\s-|\\\Z""")


def _address(written: str) -> str:
    """Return an address unchanged. Raises ValueError for text that cannot be one."""
    return _without(_NO_ADDRESS, written, "a name or an address")


Address = Annotated[str, AfterValidator(_address)]
"""A machine's name or address. ssh passes it to the shell of a ProxyCommand and of a `Match exec`."""


def _user(written: str) -> str:
    """Return a user's name unchanged. Raises ValueError for text that cannot be one."""
    return _without(_NO_USER, written, "a user's name")


def _without(forbidden: re.Pattern[str], written: str, what: str) -> str:
    if found := forbidden.search(written):
        raise ValueError(f"expected {what}" + (f" without {json.dumps(found[0])}" if found[0] else ""))
    return written


HOLD_S, MAX_HOLD_S = 60, 3600
"""The default and the maximum time for which a connection is kept for the next command, in seconds."""


def _engine(written: str) -> str:
    if not re.fullmatch(r"docker|podman|/[^\x00-\x1f\x7f]{1,106}", written):
        raise ValueError("expected docker, podman, or the absolute path of an engine's socket")
    return written


def _root(written: str) -> str:
    if not written.startswith(("/", "~")):
        raise ValueError("expected an absolute path, or one that begins with ~/")
    return written


class MachineKeys(StrictModel):
    """The login to a machine and the way to run jobs on it, as written in a `[hosts.NAME]` table."""

    user: Annotated[str, AfterValidator(_user)] | None = None
    """The login name; by default that of ssh."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port of sshd; by default that of ssh."""
    identity_file: str | None = None
    """The private key; by default those of ssh."""
    root: Annotated[str, AfterValidator(_root)] = "~/.launch"
    """The folder for runs, environments and caches: absolute, or beginning with `~/`. It needs 1 GB free. All
    nodes of a cluster must see it.
    """
    python: str | None = None
    """The Python that runs the agent, 3.8 or newer; by default launcher finds one."""
    environment: Annotated[str | None, Field(validation_alias=AliasChoices("environment", "env"))] = None
    """The job's environment, used unchanged: a folder or an interpreter. By default launcher makes one. The
    old name `env` (until 2026-11-22) still works.
    """
    runtime: str = "auto"
    """`docker`: in a container. `native`: as a process of the host. `auto`: in a container if another machine
    has a usable Docker, or a usable Podman that `engine` names.
    """
    engine: Annotated[str, AfterValidator(_engine)] | None = None
    """`docker`, `podman`, or the path of an engine's socket; by default launcher finds one."""
    sudo: bool = False
    """Use the engine with `sudo -n`."""
    build: Build = Build()
    """How to build images and environments."""
    profile: str | None = None
    """The card, if the probe should not decide."""

    @model_validator(mode="before")
    @classmethod
    def _environment_is_given_once(cls, table: Any) -> Any:
        if isinstance(table, dict) and {"environment", "env"} <= table.keys():
            raise ValueError("`env` is the old name of `environment`: remove `env`")
        return table


class Host(MachineKeys):
    """A machine.

    A subclass is another kind of host, defined by its backend, with the kind's settings in one field.
    For the kind `machine`, an `address` of None means this machine. Validating values as a `Host` returns an
    instance of their kind.
    """

    why_own_runtime: ClassVar[str] = ""
    """The reason why hosts of this kind have a special runtime; empty if they use the general ones."""
    has_queue: ClassVar[bool] = False
    """Whether a scheduler starts the runs of this kind, so that they may wait in a queue."""
    has_login: ClassVar[bool] = True
    """Whether hosts of this kind accept a login."""

    name: Annotated[str, Field(min_length=1)]
    """The table's name."""
    kind: str = "machine"
    """The kind of host: `machine`, or one of those below."""
    address: Address | None = None
    """A name, an address, or an alias of `~/.ssh/config`; by default the table's name."""
    known_hosts: str | None = None
    """The file of known host keys; by default those of ssh."""
    variables: Literal["listed", "inherit"] = "listed"
    """`inherit` passes every variable of your shell to a run, only on this computer. `listed` passes those of
    a list.
    """
    hold: Annotated[int, Field(ge=0, le=MAX_HOLD_S)] = HOLD_S
    """Seconds that a connection stays open for the next command; 0 closes it at once."""

    @field_validator("variables")
    @classmethod
    def _only_this_machine_inherits(cls, written: str, info: ValidationInfo) -> str:
        if written == "inherit" and info.data.get("address") is not None:
            raise ValueError("a run on another machine inherits no variables from here; use -e NAME=VALUE")
        return written

    @model_validator(mode="wrap")
    @classmethod
    def _is_of_its_kind(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        kind = values.get("kind", "machine") if isinstance(values, dict) else None
        if cls is not Host or kind in (None, "machine"):
            return read(_without_unset(values))
        if not isinstance(kind, str) or kind not in PACKAGES:
            raise ValueError(f"unknown kind {kind!r}: this version of launcher has no such backend")
        return cast("Self", host_kind(kind).host.model_validate(values))

    @model_validator(mode="after")
    def _has_a_runtime_of_its_kind(self) -> Self:
        if objection := self.runtime_objection(self.runtime):
            raise ValueError(objection)
        return self

    @model_serializer(mode="wrap")
    def _without_defaults_of_later_keys(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer keys that have their default: older versions would refuse a record with unknown keys."""
        values: dict[str, Any] = write(self)
        if self.kind == "machine":
            del values["kind"]
        if self.hold == HOLD_S:
            del values["hold"]
        return values

    @classmethod
    def runtime_objection(cls, runtime: str) -> str | None:
        """Return the reason why a host of this kind cannot have a runtime; None if it can."""
        own = own_runtime(cls.model_fields["kind"].default)
        if own is not None and runtime not in ("auto", own):
            return f"{cls.why_own_runtime}: expected auto or {own}"
        if own is None and runtime in PACKAGES and own_runtime(runtime) == runtime:
            return f'runtime {runtime} is for a host with kind = "{runtime}"'
        return None

    @property
    def is_local(self) -> bool:
        """Whether the host is the machine that runs `launch`, or a cluster with this machine as its login node."""
        return self.has_login and self.address is None

    @property
    def way(self) -> tuple[object, ...]:
        """The values that a connection to the host depends on; hosts with equal values may share a connection."""
        keys = ("name", "address", "port", "user", "identity_file", "known_hosts", "root", "python")
        return tuple(getattr(self, key) for key in keys)

    def by_hand(self, command: str) -> str:
        """Return a shell command that runs `command` on the host: over ssh if the host is another machine."""
        if self.address is None:
            return command
        words = ["-i", self.identity_file] if self.identity_file else []
        if self.known_hosts:
            # ssh takes several files, separated by spaces.
            file = f'"{self.known_hosts}"' if " " in self.known_hosts else self.known_hosts
            words += ["-o", f"UserKnownHostsFile={file}"]
        words += ["-p", str(self.port)] if self.port else []
        login = f"{self.user}@{self.address}" if self.user else self.address
        return f"{shlex.join(['ssh', *words, login])} {command}"


def _without_unset(values: Any) -> Any:
    """Leave out the unset settings of other kinds, which some older versions wrote for every host."""
    unset = {kind.replace("-", "_") for kind in PACKAGES}
    if not isinstance(values, dict) or not unset & values.keys():
        return values
    return {key: value for key, value in values.items() if value is not None or key not in unset}


LOCAL = Host(name="local")
"""This machine, which needs no entry in a file."""


class HostKind:
    """The table of a kind of host: its keys, the keys that need trust, and the resulting host.

    `host` is the class of its hosts, which have the settings of the kind in the field `key`. `foreign` are
    keys of a machine that this kind does not have, each with the reason. `free` are keys that never need
    trust: they lead to no machine or service, and choose no program.
    """

    title: ClassVar[str] = "a machine"
    host: ClassVar[type[Host]] = Host
    key: ClassVar[str] = ""
    settings: ClassVar[type[BaseModel] | None] = None
    table: ClassVar[type[BaseModel]] = Host
    foreign: ClassVar[Mapping[str, str]] = {}
    free: ClassVar[Collection[str]] = ("kind",)
    has_runtimes: ClassVar[bool] = True
    """Whether the table may name a runtime other than the kind's default."""
    implicit: ClassVar[Host | None] = None
    """The host of this kind that needs no table."""
    offering: ClassVar[Host | None] = None
    """The account whose offers are listed if no table defines an account; None for a kind that rents no machines."""

    @property
    def setting_keys(self) -> Collection[str]:
        """The keys that only tables of this kind have."""
        return () if self.settings is None else self.settings.model_fields.keys()

    def read(self, name: str, written: Mapping[str, Any], *, file: str, text: str) -> Host:
        """Return the host of a table. Raises BadFileError that names file and key."""
        prefix = f"hosts.{name}."
        if self.settings is None:
            return build(Host, {"name": name, **written}, file=file, text=text, prefix=prefix)
        unoffered = {*self.foreign, *(() if self.has_runtimes else ("runtime",))}
        values = dict(build(self.table, written, file=file, text=text, prefix=prefix, unoffered=unoffered))
        if objection := self.host.runtime_objection(values["runtime"]):
            raise BadFileError(f'{file}: {prefix}runtime = "{values["runtime"]}": {objection}')
        settings = self.settings.model_validate({key: values.pop(key) for key in self.settings.model_fields})
        return self.host.model_validate({"name": name, self.key: settings, **values})

    def project_objection(self, host: Host) -> tuple[str, str] | None:
        """Return a key that a project's file may not set, and the reason; None if all its keys are allowed.

        Such keys decide where credentials are sent, or how much money is spent.
        """
        return None

    def without_table(self, name: str, user_folder: str) -> str | None:
        """Return advice for a name without a table: the table to write; None if the name has no special meaning."""
        return None
