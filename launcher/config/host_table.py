"""Read a `[hosts.NAME]` table: a machine, or with a `kind` an account or a cluster, each with keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from launcher.errors import BadFileError
from launcher.values import login_text
from launcher.values.host import HOLD_S, MOST_HOLD_S, Host, MachineKeys, runtime_objection
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.parsing import build, line_of, nearest
from launcher.values.slurm_settings import SlurmSettings
from launcher.values.software.image import Build

_NO_MACHINE = "there is no machine to log in to: Kaggle runs the job, and launcher asks its service"
_ENVIRONMENT = "the job has the Python of Kaggle's image; what it lacks is installed from `requirements`"
_NOT_OF_KAGGLE = {
    "address": _NO_MACHINE,
    "user": _NO_MACHINE,
    "port": _NO_MACHINE,
    "identity_file": _NO_MACHINE,
    "known_hosts": _NO_MACHINE,
    "root": "what the runs of an account send home is kept in launcher's own folder on this machine",
    "python": "the job has the Python of Kaggle's image",
    "environment": _ENVIRONMENT,
    "env": _ENVIRONMENT,
    "engine": "a kernel is Kaggle's own container, and starts no other",
    "sudo": "a kernel is Kaggle's own container, and starts no other",
    "build": "the image is Kaggle's own; what a job lacks is installed from its `requirements`",
    "variables": "a kernel inherits no variables from here; use -e NAME=VALUE",
    "hold": _NO_MACHINE,
}
_NOT_OF_LAMBDA = {
    "address": "each machine that is rented has its own, which the service tells",
    "known_hosts": "launcher makes the host key of each machine that it rents, and keeps it with the rental",
    "variables": "a run on a rented machine inherits no variables from here; use -e NAME=VALUE",
    "hold": "no connection to a machine is kept that may be given back at any moment",
}
_NOT_OF_SLURM = {
    "engine": "a job of Slurm's runs as processes of its node, in no container of ours",
    "sudo": "a job of Slurm's runs as processes of its node, in no container of ours",
    "variables": "a job of Slurm's inherits no variables from here; use -e NAME=VALUE",
}
"""The keys of machines that another kind of host does not have, and why."""


class _KaggleTable(KaggleSettings):
    """A table as it is written: the settings stand beside what all kinds of host have."""

    kind: Literal["kaggle"]
    profile: str | None = None
    runtime: Literal["auto", "kaggle"] = "auto"


class _LambdaTable(LambdaSettings, MachineKeys):
    """A table as it is written: the settings stand beside the keys of the machine that is rented."""

    kind: Literal["lambda-cloud"]


class _SlurmTable(SlurmSettings, MachineKeys):
    """A table as it is written: the settings stand beside the keys of the login node. Its `build` is Slurm's."""

    kind: Literal["slurm"]
    address: Annotated[str, AfterValidator(login_text.address)] | None = None
    known_hosts: str | None = None
    hold: Annotated[int, Field(ge=0, le=MOST_HOLD_S)] = HOLD_S


class _Kind(NamedTuple):
    """A kind of host besides a machine: what messages call it, its settings and its table, and which keys it does not have, and why.

    `has_runtimes`: its table may name one, where others have the one of their kind.
    """

    title: str
    key: str
    settings: type[KaggleSettings | LambdaSettings | SlurmSettings]
    table: type[_KaggleTable | _LambdaTable | _SlurmTable]
    foreign: Mapping[str, str]
    has_runtimes: bool = False


_KINDS = {
    "kaggle": _Kind("an account of Kaggle's", "kaggle", KaggleSettings, _KaggleTable, _NOT_OF_KAGGLE),
    "lambda-cloud": _Kind(
        "an account at Lambda Cloud", "lambda_cloud", LambdaSettings, _LambdaTable, _NOT_OF_LAMBDA, True
    ),
    "slurm": _Kind("a Slurm cluster", "slurm", SlurmSettings, _SlurmTable, _NOT_OF_SLURM),
}


def read_host(name: str, written: Mapping[str, Any], *, is_here: bool, file: str, text: str) -> Host:
    """Return the host of a table; `is_here` if one without an address is this machine, else its name is an alias of ssh's.

    Raises BadFileError that names file and key, and says why if the key belongs to another kind of host.
    """
    prefix = f"hosts.{name}."
    if "name" in written:
        raise BadFileError(f"{file}: unknown key '{prefix}name': the table's name is the host's")
    for of_kind, one in _KINDS.items():
        if one.key in written:
            why = f'write kind = "{of_kind}", and its keys here'
            raise BadFileError(f"{file}: unknown key '{prefix}{one.key}': {why}")
    if "api_key" in written:
        raise BadFileError(
            f"{file}: unknown key '{prefix}api_key': an API key never belongs into a file of a project\n"
            "  set LAMBDA_API_KEY, or put it into ~/.config/launch/lambda_key (chmod 600)"
        )
    kind = written.get("kind", "machine")
    own = _KINDS.get(kind) if isinstance(kind, str) else None
    if isinstance(kind, str) and own is None and kind != "machine":
        line = line_of(f"{prefix}kind", text)
        place = f"   (line {line})" if line else ""
        known = ["machine", *_KINDS]
        raise BadFileError(
            f'{file}: {prefix}kind = "{kind}": unknown kind{nearest(kind, known)}{place}\n  known: {", ".join(known)}'
        )
    _refuse_foreign(name, written, kind, own, file, text)
    has_address = own is None or "address" in own.table.model_fields
    if has_address and not is_here:
        written = {"address": name, **written}
    if own is None:
        return build(Host, {"name": name, **written}, file=file, text=text, prefix=prefix)
    written, making = _split_build(written) if own.key == "slurm" else (written, None)
    for key in ("base", "network"):
        if making is not None and key in making:
            raise BadFileError(
                f"{file}: {prefix}build.{key}: no image is built on a cluster\n"
                "  known: where ('login' or 'job'), pip_conf, ca_bundle, proxy, torch_index"
            )
    unoffered = {*own.foreign, *(() if own.has_runtimes else ("runtime",))}
    values = dict(build(own.table, written, file=file, text=text, prefix=prefix, unoffered=unoffered))
    if objection := runtime_objection(values["kind"], values["runtime"]):
        raise BadFileError(f'{file}: {prefix}runtime = "{values["runtime"]}": {objection}')
    settings = own.settings.model_validate({key: values.pop(key) for key in own.settings.model_fields})
    if making is not None:
        values["build"] = build(Build, making, file=file, text=text, prefix=f"{prefix}build.")
    return Host.model_validate({"name": name, own.key: settings, **values})


def _split_build(written: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return a cluster's table with `build` as text, which says where environments are made, and how they are made.

    Both stand in `[hosts.NAME.build]`, the first as its key `where`.
    """
    making = written.get("build")
    if not isinstance(making, Mapping):
        return written, None
    rest = {key: value for key, value in making.items() if key != "where"}
    others = {key: value for key, value in written.items() if key != "build"}
    return {**others, **({"build": making["where"]} if "where" in making else {})}, rest


def _refuse_foreign(
    name: str, written: Mapping[str, Any], kind: object, own: _Kind | None, file: str, text: str
) -> None:
    """Raise BadFileError for keys of another kind of host, of which each has its reason."""
    where = f"{file}: hosts.{name}."

    def place(key: str) -> str:
        line = line_of(f"hosts.{name}.{key}", text)
        return f"   (line {line})" if line else ""

    if own is not None and (keys := [key for key in written if key in own.foreign]):
        raise BadFileError(
            "\n".join(
                f'{where}{key}: not for kind = "{kind}": {own.foreign[key]}{place(key)}' for key in keys
            )
        )
    known = (own.table if own is not None else Host).model_fields
    unknown = [key for key in written if key not in known]
    likely = max(_KINDS, key=lambda other: len(_KINDS[other].settings.model_fields.keys() & unknown))
    keys = [key for key in unknown if key in _KINDS[likely].settings.model_fields]
    if keys:
        lines = [f"{where}{key}: only for {_KINDS[likely].title}{place(key)}" for key in keys]
        raise BadFileError("\n".join([*lines, f'  if {name} is one   kind = "{likely}"']))
