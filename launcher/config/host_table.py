"""Read a `[hosts.NAME]` table: a machine, or another `kind` of host, which its backend reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.backends.kinds import PACKAGES, host_kind
from launcher.errors import BadFileError
from launcher.values.host import Host, HostKind
from launcher.values.parsing import line_of, nearest


def read_host(name: str, written: Mapping[str, Any], *, is_here: bool, file: str, text: str) -> Host:
    """Return the host of a table.

    Without an address it is this machine if `is_here`, else an ssh alias of its name. Raises BadFileError
    that names file and key, and says which kind of host a misplaced key belongs to.
    """
    prefix = f"hosts.{name}."
    if "name" in written:
        raise BadFileError(f"{file}: unknown key '{prefix}name': the table's name is the host's")
    for other in PACKAGES:
        if (key := other.replace("-", "_")) in written and host_kind(other).key == key:
            why = f'write kind = "{other}", and its keys here'
            raise BadFileError(f"{file}: unknown key '{prefix}{key}': {why}")
    if "api_key" in written:
        raise BadFileError(
            f"{file}: unknown key '{prefix}api_key': an API key does not belong in a project's file\n"
            "  set LAMBDA_API_KEY, or put it into ~/.config/launch/lambda_key (chmod 600)"
        )
    kind = written.get("kind", "machine")
    line = line_of(f"{prefix}kind", text)
    place = f"   (line {line})" if line else ""
    if not isinstance(kind, str):
        raise BadFileError(
            f"{file}: {prefix}kind = {kind!r}: expected text{place}\n  known: {', '.join(PACKAGES)}"
        )
    if kind not in PACKAGES:
        raise BadFileError(
            f'{file}: {prefix}kind = "{kind}": unknown kind{nearest(kind, PACKAGES)}{place}\n  known: {", ".join(PACKAGES)}'
        )
    own = host_kind(kind)
    _refuse_foreign(name, written, kind, own, file, text)
    if "address" in own.table.model_fields and not is_here:
        written = {"address": name, **written}
    return own.read(name, written, file=file, text=text)


def _refuse_foreign(
    name: str, written: Mapping[str, Any], kind: object, own: HostKind, file: str, text: str
) -> None:
    """Raise BadFileError for keys of another kind of host, with the reason for each."""
    where = f"{file}: hosts.{name}."

    def place(key: str) -> str:
        line = line_of(f"hosts.{name}.{key}", text)
        return f"   (line {line})" if line else ""

    if keys := [key for key in written if key in own.foreign]:
        raise BadFileError(
            "\n".join(
                f'{where}{key}: not for kind = "{kind}": {own.foreign[key]}{place(key)}' for key in keys
            )
        )
    unknown = [key for key in written if key not in own.table.model_fields]
    if not unknown:
        return
    counts = {other: len(set(unknown) & {*host_kind(other).setting_keys}) for other in PACKAGES}
    likely = max(counts, key=counts.__getitem__)
    if counts[likely]:
        title, keys = (
            host_kind(likely).title,
            [key for key in unknown if key in host_kind(likely).setting_keys],
        )
        lines = [f"{where}{key}: only for {title}{place(key)}" for key in keys]
        raise BadFileError("\n".join([*lines, f'  if {name} is one   kind = "{likely}"']))
