"""Trust in a project's files: their values about hosts, secrets and run ends apply only after the user approves them.

An approval is a small file in the user's data folder, one for each file and the values that were shown, as in
direnv. So a change of any other value needs no new approval, and values that were approved once stay
approved. `LAUNCH_TRUST` names folders: all files in and below them are trusted without approval.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.backends.kinds import PACKAGES, host_kind
from launcher.base import question
from launcher.base.text import printable
from launcher.config.catalogue import user_folder
from launcher.errors import BadFileError

Values = Mapping[str, Any]
"""The values of a file that need trust, by their keys, e.g. `hosts.lab.address`."""

ADDRESS = re.compile(
    r"(?=.*[@.:])(?:(?P<user>[\w.-]+)@)?(?P<address>\w[\w.-]*|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
"""An address. Unlike a name, it has a user, a dot or a port."""
_FREE = {"profile", "runtime", "hold"}
"""The keys of every host's table that never need trust: they lead to no machine or service, and choose no program."""
_OF_JOBS = ("secrets", "on_end")


def project_values(
    tables: Mapping[str, Any], own: Collection[str], aliases: Collection[str]
) -> dict[str, object]:
    """Return the values of a `launch.toml` that need trust.

    `own` are the hosts of the user's file, `aliases` those of ssh's configuration.
    """
    found = {"on_end": tables["on_end"]} if "on_end" in tables else {}
    hosts = tables.get("hosts")
    written = hosts if isinstance(hosts, dict) else {}
    default = tables.get("host")
    if (
        isinstance(default, str)
        and default not in {*own, *aliases, *written}
        and not is_without_table(default)
    ):
        found["host"] = default
    for name, table in written.items():
        if isinstance(table, dict):
            found |= host_values(name, table, own, aliases)
    return found


def host_values(
    name: str, table: Mapping[str, Any], own: Collection[str], aliases: Collection[str]
) -> dict[str, object]:
    """Return the values of a `[hosts.NAME]` table that need trust.

    A table without an address has its name as the address, unless the name is an alias of ssh's configuration.
    If the table replaces a table of the user's own file, all its values need trust.
    """
    if name in own:
        return {f"hosts.{_key(name)}.{_key(key)}": value for key, value in table.items()}
    written = table.get("kind", "machine")
    kind = host_kind(written) if isinstance(written, str) and written in PACKAGES else None
    free = {*_FREE, *(kind.free if kind is not None else ())}
    if kind is not None and kind.implicit is not None and kind.implicit.name == name:
        free.add("kind")  # for any other name, the kind decides which machine or service is contacted
    found = {key: value for key, value in table.items() if key not in free}
    is_reached = kind is not None and kind.host.has_login and name != "local"
    if is_reached and "address" not in table and name not in aliases:
        found["address"] = name
    return {f"hosts.{_key(name)}.{_key(key)}": value for key, value in found.items()}


def job_values(tables: Mapping[str, Any], hosts: Collection[str]) -> dict[str, object]:
    """Return the values of a job's or a batch's file that need trust.

    `hosts` are those that have a table, or an alias in ssh's configuration.
    """
    runs = tables.get("run")
    parts = [
        ("", tables),
        *((f"run.{n}.", one) for n, one in enumerate(runs if isinstance(runs, list) else (), 1)),
    ]
    found: dict[str, object] = {}
    for prefix, part in parts:
        if isinstance(part, dict):
            found |= {f"{prefix}{key}": value for key, value in part.items() if _counts(key, value, hosts)}
            for inner in ("settings", "matrix"):
                found |= dict(_below(f"{prefix}{inner}", part.get(inner), hosts))
    return found


def _below(prefix: str, written: object, hosts: Collection[str]) -> Iterator[tuple[str, object]]:
    for key, value in written.items() if isinstance(written, dict) else ():
        if _counts(key, value, hosts) and (key != "host" or prefix.endswith("matrix")):
            yield f"{prefix}.{key}", value
        yield from _below(f"{prefix}.{key}", value, hosts)


def _counts(key: str, value: object, hosts: Collection[str]) -> bool:
    words = value if isinstance(value, list) else [value]
    is_elsewhere = any(
        isinstance(one, str) and one not in hosts and not is_without_table(one) for one in words
    )
    return key.partition(".")[0] in _OF_JOBS or (key == "host" and is_elsewhere)


def is_without_table(name: str) -> bool:
    """Return whether a name is a host that needs no table: this machine, or an implicit host of a kind."""
    return name == "local" or (name in PACKAGES and host_kind(name).implicit is not None)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def is_trusted(file: Path, values: Values) -> bool:
    """Return whether these values of a file are trusted."""
    return not values or _is_in_a_trusted_folder(file) or _record(file, values).is_file()


def check_trust(file: Path, values: Values, why: str = "") -> None:
    """Ask the user, if a terminal is available, to trust values of a file.

    Raises BadFileError without approval. `why` is a line that explains why the values need trust.
    """
    if is_trusted(file, values) or ask(file, values):
        return
    name, keys = printable(str(file)), printable(", ".join(values))
    word = "" if file == Path("launch.toml") else f" {shlex.quote(name)}"
    is_relative = any(one and not os.path.isabs(one) for one in _named_folders())
    raise BadFileError(
        f"{name}: not trusted yet: {keys}\n{why}"
        f"  look at it, then   launch trust{word}     for CI   LAUNCH_TRUST=FOLDER, see docs/hosts.md"
        + ("\n  LAUNCH_TRUST does not name an absolute folder" if is_relative else "")
    )


def ask(file: Path, values: Values) -> bool:
    """Ask the user to trust values of a file, and record an approval; without a terminal the answer is no."""
    if not question.agrees("\n".join([*describe(file, values), "trust these values of this file?"])):
        return False
    trust(file, values)
    return True


def describe(file: Path, values: Values) -> list[str]:
    """Return lines that show the values of a file that an approval would cover."""
    return [
        f"{printable(str(_place(file)))} decides which machines and services are contacted, which programs run, or what gets your secrets:",
        *(f"  {printable(f'{key} = {_text(value)}')}" for key, value in values.items()),
    ]


def trust(file: Path, values: Values) -> None:
    """Record the approval of these values of a file. Raises BadFileError if it cannot be written."""
    from launcher.base.whole_file import write_durably

    record = {"version": 1, "file": str(_place(file)), "values": values}
    try:
        write_durably(_record(file, values), json.dumps(record, default=str).encode())
    except OSError as error:
        raise BadFileError(f"{error.filename}: cannot be written: {error.strerror}") from error


def revoke(place: Path) -> list[str]:
    """Delete every approval of a file, or of all files below a folder; return the files. Raises OSError."""
    from launcher.base.json_file import read_json

    real, found = Path(os.path.realpath(place)), set()
    for path in _folder().glob("*.json"):
        file = read_json(path).get("file")
        if isinstance(file, str) and Path(file).is_relative_to(real if place.is_dir() else _place(place)):
            path.unlink(missing_ok=True)
            found.add(file)
    return sorted(found)


def _place(file: Path) -> Path:
    """Return a file's path, below the real path of its folder.

    If the file is a link, this is the path of the link, not of its target.
    """
    return Path(os.path.realpath(file.parent)) / file.name


def _record(file: Path, values: Values) -> Path:
    said = json.dumps([str(_place(file)), values], sort_keys=True, default=str)
    return _folder() / f"{hashlib.sha256(said.encode(errors='surrogateescape')).hexdigest()}.json"


def _folder() -> Path:
    from platformdirs.unix import Unix

    return Unix("launch").user_data_path / "trusted"


def _is_in_a_trusted_folder(file: Path) -> bool:
    place = _place(file)
    named = [one for one in _named_folders() if os.path.isabs(one)]
    return any(place.is_relative_to(os.path.realpath(one)) for one in named)


def _named_folders() -> list[str]:
    return os.environ.get("LAUNCH_TRUST", "").split(os.pathsep)


def is_users_own(file: Path) -> bool:
    """Return whether a file is in the user's folder, or installed with launcher, and so needs no trust."""
    from launcher.base.resources import data_folder

    return any(
        _place(file).is_relative_to(os.path.realpath(one)) for one in (user_folder(), data_folder("jobs"))
    )


def _text(value: object) -> str:
    from launcher.base.toml import inline

    try:
        return inline(value)
    except ValueError:
        return str(value)
