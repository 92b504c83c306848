"""The rows of `launch doctor` for this computer. Nothing is changed, and no host or service is contacted."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.kinds import PACKAGES, host_kind
from launcher.backends.registry import backend_of_kind
from launcher.config import trust
from launcher.config.lookup import PROJECT_FILE
from launcher.copy import index_folder
from launcher.copy.runs_folder import runs_folder
from launcher.errors import BadFileError, UsageError
from launcher.planning.gate import FREE_GB_NEEDED
from launcher.transport.ssh.ssh_keys import agent_keys, usual_key_files
from launcher.values.prerequisite import Prerequisite

if TYPE_CHECKING:
    from launcher.config.lookup import Lookup


def computer_rows(lookup: Lookup) -> Iterator[Prerequisite]:
    """Yield the rows of this computer: one for each program, folder and file, and for each kind of credentials."""
    yield Prerequisite.ok("python", f"{platform.python_version()}   {sys.executable}")
    without = "Include and Match of ~/.ssh/config are not read without it"
    yield _program_row("ssh", without, "sudo apt install openssh-client     (Debian, Ubuntu)")
    yield _keys_row(lookup)
    without = "files that git ignores would be sent without it"
    yield _program_row("git", without, "sudo apt install git     (Debian, Ubuntu)")
    if (torch := _torch()) is not None:
        yield Prerequisite.ok("torch", torch)
    yield _settings_row(lookup)
    yield _runs_row()
    yield _folder_row("index", index_folder.folder())
    yield from _credential_rows()


def _program_row(name: str, without: str, mend: str) -> Prerequisite:
    path = shutil.which(name)
    return (
        Prerequisite.lacking(name, f"not found: {without}", mend)
        if path is None
        else Prerequisite.ok(name, path)
    )


def _keys_row(lookup: Lookup) -> Prerequisite:
    """Return the row of the keys for ssh: their number in ssh-agent, the usual files, and those of the hosts' tables and of ssh's configuration."""
    socket = os.environ.get("SSH_AUTH_SOCK")
    held = agent_keys(socket) if socket else None
    files = [f"~/.ssh/{name}" for name in usual_key_files()]
    with contextlib.suppress(UsageError, BadFileError):  # the row of the settings names the invalid file
        named = sorted({host.identity_file for host in lookup.hosts.values() if host.identity_file})
        named += re.findall(r"(?im)^\s*IdentityFile[ =]+\"?([^\s\"]+)", _ssh_config())
        files += [
            path for path in dict.fromkeys(named) if path not in files and Path(path).expanduser().is_file()
        ]
    if socket and held is None:
        words = ", ".join(["ssh-agent does not answer", *files])
        return Prerequisite.unknown("ssh keys", words, "look   ssh-add -l")
    found = [f"{held} in ssh-agent" if held is not None else "no ssh-agent", *files]
    if held or files:
        return Prerequisite.ok("ssh keys", ", ".join(found))
    words = f"{found[0]}, none of the usual files: a host over SSH needs a key"
    return Prerequisite.unknown("ssh keys", words, "make one   ssh-keygen -t ed25519")


def _ssh_config() -> str:
    """Return the text of the user's ssh configuration, without the files that it includes; empty without one."""
    try:
        return (Path.home() / ".ssh" / "config").read_text(errors="replace")
    except OSError:
        return ""


def _torch() -> str | None:
    """Return the installed version of torch, without importing it; None without one."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _settings_row(lookup: Lookup) -> Prerequisite:
    """Return the row of the user's and the project's files: whether they are valid, and trusted."""
    name = str(PROJECT_FILE)
    try:
        values = lookup.project_values
    except BadFileError as error:
        return Prerequisite.lacking("settings", str(error))
    if not PROJECT_FILE.is_file():
        return Prerequisite.ok(name, "none in this folder")
    if not trust.is_trusted(PROJECT_FILE, values):
        words = f"not trusted yet: {', '.join(values)}"
        return Prerequisite.lacking(name, words, "look at it, then   launch trust")
    try:
        lookup.host(None)  # the default host
    except UsageError as error:
        return Prerequisite.lacking(name, str(error))
    return Prerequisite.ok(name, "trusted" if values else "no value in it needs trust")


def _runs_row() -> Prerequisite:
    try:
        return _folder_row("runs", runs_folder())
    except UsageError as error:
        return Prerequisite.lacking("runs", str(error))


def _folder_row(name: str, folder: Path) -> Prerequisite:
    """Return the row of a folder that commands write to, or would create."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free_gb = shutil.disk_usage(existing).free / 1e9
    except OSError as error:
        return Prerequisite.lacking(name, f"{existing}: {error.strerror}")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Prerequisite.lacking(
            name, f"{existing} cannot be written", f"its permissions   ls -ld {shlex.quote(str(existing))}"
        )
    if free_gb < FREE_GB_NEEDED:
        words = f"{folder} has less than {FREE_GB_NEEDED:g} GB free"
        return Prerequisite.lacking(name, words, f"free some space   du -sh {shlex.quote(str(existing))}/*")
    return Prerequisite.ok(name, f"{free_gb:,.0f} GB free   {folder}")


def _credential_rows() -> Iterator[Prerequisite]:
    """Yield a row for the credentials of each kind of host: where they were found, never their values."""
    for kind in PACKAGES:
        try:
            origin = backend_of_kind(kind).upkeep.credentials()
        except BadFileError as error:
            yield Prerequisite.lacking("credentials", str(error))
            continue
        if origin is not None:
            yield Prerequisite.ok("credentials", f"{host_kind(kind).title}   {origin}")
