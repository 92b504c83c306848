"""The `[hosts.NAME]` table of each kind of host.

Each backend has one; the default is the table of a machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.parsing import build

if TYPE_CHECKING:
    from pydantic import BaseModel


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
    """The account whose offers are listed if no table has one; None for a kind that rents no machines."""

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
        del host
        return None

    def without_table(self, name: str, user_folder: str) -> str | None:
        """Return the table to write for a host of this name that has none; None if the name has no special meaning."""
        del name, user_folder
        return None
