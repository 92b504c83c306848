"""Read a `[hosts.NAME]` table: a machine, or with `kind = "kaggle"` an account of Kaggle's, each with keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.parsing import build

_NO_MACHINE = "there is no machine to log in to: Kaggle runs the job, and launcher asks its service"
_OF_MACHINES = {
    "address": _NO_MACHINE,
    "user": _NO_MACHINE,
    "port": _NO_MACHINE,
    "identity_file": _NO_MACHINE,
    "known_hosts": _NO_MACHINE,
    "root": "what the runs of an account send home is kept in launcher's own folder on this machine",
    "python": "the job has the Python of Kaggle's image",
    "environment": "the job has the Python of Kaggle's image; what it lacks is installed from `requirements`",
    "env": "the job has the Python of Kaggle's image; what it lacks is installed from `requirements`",
    "engine": "a kernel is Kaggle's own container, and starts no other",
    "sudo": "a kernel is Kaggle's own container, and starts no other",
    "build": "the image is Kaggle's own; what a job lacks is installed from its `requirements`",
    "variables": "a kernel inherits no variables from here; use -e NAME=VALUE",
}
"""The keys of machines that an account of Kaggle's does not have, and why."""


class _KaggleTable(KaggleSettings):
    """A table as it is written: the settings stand beside what all kinds of host have."""

    kind: Literal["kaggle"]
    profile: str | None = None
    runtime: Literal["auto", "kaggle"] = "auto"


def read_host(name: str, written: Mapping[str, Any], *, is_here: bool, file: str, text: str) -> Host:
    """Return the host of a table; `is_here` if a machine without an address is this one, else its name is an alias of ssh's.

    Raises BadFileError that names file and key, and says why if the key belongs to another kind of host.
    """
    prefix = f"hosts.{name}."
    for key in ("name", "kaggle"):
        if key in written:
            why = (
                "the table's name is the host's"
                if key == "name"
                else 'write kind = "kaggle", and its keys here'
            )
            raise BadFileError(f"{file}: unknown key '{prefix}{key}': {why}")
    if written.get("kind") == "kaggle":
        if foreign := [key for key in written if key in _OF_MACHINES]:
            lines = [
                f'{file}: {prefix}{key}: not for kind = "kaggle": {_OF_MACHINES[key]}' for key in foreign
            ]
            raise BadFileError("\n".join(lines))
        table = build(_KaggleTable, written, file=file, text=text, prefix=prefix)
        settings = KaggleSettings.model_validate(
            {key: getattr(table, key) for key in KaggleSettings.model_fields}
        )
        return Host(name=name, kind="kaggle", kaggle=settings, profile=table.profile, runtime=table.runtime)
    if foreign := [key for key in written if key in KaggleSettings.model_fields]:
        lines = [f"{file}: {prefix}{key}: only for an account of Kaggle's" for key in foreign]
        raise BadFileError("\n".join([*lines, f'  if {name} is one   kind = "kaggle"']))
    alias = {} if is_here else {"address": name}
    return build(Host, {"name": name, **alias, **written}, file=file, text=text, prefix=prefix)
