"""Look up names: hosts, profiles, jobs, and the project's defaults. Each file is read once, on first use."""

from __future__ import annotations

import copy
import fnmatch
import functools
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.backends.kinds import PACKAGES, RUNTIMES, host_kind
from launcher.base.text import printable
from launcher.base.toml import Toml, TomlTable, read_toml
from launcher.config import trust
from launcher.config.catalogue import files, user_folder, user_folder_text
from launcher.config.host_table import read_host
from launcher.errors import BadFileError, UnknownNameError
from launcher.transport.ssh.ssh_files import names_and_patterns
from launcher.values.host import LOCAL, Host
from launcher.values.parsing import build, nearest, unknown_name
from launcher.values.profile import Profile
from launcher.values.software.image import Build

PROJECT_FILE = Path("launch.toml")


class Project(NamedTuple):
    """The defaults in `launch.toml` of the working directory; all are optional."""

    host: str | None
    """The default host."""
    profile: str | None
    """The default card."""
    job: str | None
    """The default job: a name or a file."""
    on_end: str | list[str] | None
    """The default of a job's `on_end`."""


class Lookup:
    """The names known to one command. Each file is read once, even if the command looks up thousands of names."""

    def __init__(self) -> None:
        """Create a lookup that has not read any file yet."""
        self._read: dict[Path, Toml] = {}
        self._is_trusted = False

    @functools.cached_property
    def project(self) -> Project:
        """The defaults of `launch.toml`. Raises BadFileError for keys that it may not contain."""
        data = self._project_file.tables
        words = {key: data.get(key) for key in ("host", "profile", "job")}
        for key, value in words.items():
            if value is not None and not isinstance(value, str):
                raise BadFileError(f"{PROJECT_FILE}: {key} = {value!r}: expected text")
        return Project(**words, on_end=data.get("on_end"))

    @property
    def hosts(self) -> dict[str, Host]:
        """The hosts whose tables need no trust or are trusted, and `local`. A host without a table is not among them."""
        untrusted = self.untrusted
        return {name: host for name, host in self.written_hosts.items() if name not in untrusted}

    @property
    def untrusted(self) -> frozenset[str]:
        """The hosts whose tables in `launch.toml` are not trusted yet, so that they cannot be used.

        `local` may be among them.
        """
        values = self.project_values
        if not self._is_trusted:
            self._is_trusted = trust.is_trusted(PROJECT_FILE, values)
        tables = {} if self._is_trusted else self._project_file.tables.get("hosts", {})
        return frozenset(
            name
            for name, table in tables.items()
            if trust.host_values(name, table, self._own_hosts, self.aliases)
        )

    def ask_trust(self) -> None:
        """Ask the user, if a terminal is available, whether to trust the values of `launch.toml`."""
        if self.project_values and not trust.is_trusted(PROJECT_FILE, self.project_values):
            trust.ask(PROJECT_FILE, self.project_values)

    def check_trust(self) -> None:
        """Check trust like `ask_trust`. Raises BadFileError if the values are not trusted."""
        tables = self._project_file.tables.get("hosts", {})
        replaced = ", ".join(printable(f"[hosts.{name}]") for name in tables if name in self._own_hosts)
        own = f"{user_folder_text()}/hosts.toml"
        why = f"  it replaces {replaced} of {own}, so each of its values needs trust\n" if replaced else ""
        trust.check_trust(PROJECT_FILE, self.project_values, why)

    @functools.cached_property
    def project_values(self) -> trust.Values:
        """The values of `launch.toml` that need trust."""
        _ = self.written_hosts  # errors in the tables come first
        return trust.project_values(self._project_file.tables, self._own_hosts, self.aliases)

    @property
    def names(self) -> list[str]:
        """The hosts that have a table, or are a plain alias of ssh's configuration."""
        return [*self.written_hosts, *self.aliases]

    @property
    def _own_hosts(self) -> TomlTable:
        """The tables of the user's `hosts.toml`."""
        tables: TomlTable = self._own_file.tables.get("hosts", {})
        return tables

    @functools.cached_property
    def written_hosts(self) -> dict[str, Host]:
        """Every host in the files, trusted or not. Use it for names; never connect to a host from it."""
        found = {"local": LOCAL}
        for path, (data, text) in (
            (user_folder() / "hosts.toml", self._own_file),
            (PROJECT_FILE, self._project_file),
        ):
            tables = data.get("hosts", {})
            if not isinstance(tables, dict):
                raise BadFileError(f"{path}: hosts: expected tables [hosts.NAME]")
            for name, written in tables.items():
                if not isinstance(written, dict):
                    raise BadFileError(f"{path}: hosts.{name}: expected a table [hosts.{name}]")
                one = read_host(name, written, is_here=name == "local", file=str(path), text=text)
                if path == PROJECT_FILE:
                    _refuse_what_is_your_own(one)
                check_runtime(one.runtime, f'{path}: hosts.{name}.runtime = "{one.runtime}"')
                found[name] = one.model_copy(
                    update={"environment": _environment(one, path), "build": _build(one.build, path)}
                )
        return found

    def host(self, name: str | None) -> Host:
        """Return the host of this name.

        It comes from a file, an alias of ~/.ssh/config, a kind that needs no table, or an address like
        user@machine:port. None means the project's default, else this machine. If values in `launch.toml`
        about the host are not trusted, the user is asked. Raises BadFileError without trust, and
        UnknownNameError with the nearest name.
        """
        known = self.written_hosts
        wanted = name or self.project.host or "local"
        if wanted in self.untrusted or (name is None and "host" in self.project_values):
            self.check_trust()
        if wanted in known:
            return known[wanted]
        names, patterns = self._names_of_ssh
        is_plain = not re.search(r"[*?!]", wanted)
        if wanted in names or (is_plain and any(fnmatch.fnmatchcase(wanted, one) for one in patterns)):
            return build(Host, {"name": wanted, "address": wanted}, file="--host")
        if (implicit := implicit_host(wanted)) is not None:
            return implicit
        for kind in PACKAGES:
            if words := host_kind(kind).without_table(wanted, user_folder_text()):
                raise UnknownNameError(words)
        if found := trust.ADDRESS.fullmatch(wanted):
            table = {"name": wanted, "address": found["address"].strip("[]"), "user": found["user"]}
            port = int(found["port"]) if found["port"] else None
            return build(Host, {**table, "port": port}, file="--host")
        names_here = [*known, *names, *implicit_names()]
        looked_in = f"launch.toml, {user_folder_text()}/hosts.toml, ~/.ssh/config"
        error = unknown_name("host", wanted, names_here, looked_in=looked_in)
        mend = _in_a_folder_above() or ("" if nearest(wanted, names_here) else _new_host(wanted))
        raise UnknownNameError(f"{error}{mend}")

    def file_of(self, name: str) -> str:
        """Return the file that contains a host's table, as messages name it."""
        tables = self._project_file.tables.get("hosts", {})
        return str(PROJECT_FILE) if name in tables else f"{user_folder_text()}/hosts.toml"

    @functools.cached_property
    def aliases(self) -> list[str]:
        """The plain names of ssh's configuration, each of which is a host."""
        return self._names_of_ssh[0]

    @functools.cached_property
    def profiles(self) -> dict[str, Profile]:
        """All profiles by name; a profile of the user replaces the installed one of the same name."""
        found: dict[str, Profile] = {}
        for name, path in files("profiles").items():
            data, text = read_toml(path)
            found[name] = build(Profile, data, file=str(path), text=text)
            if found[name].name != name:
                raise BadFileError(f"{path}: name = \"{found[name].name}\": the file's name says '{name}'")
        return found

    def profiles_meant(self, name: str) -> tuple[Profile, ...]:
        """Return the profile of this name, or the profiles that the name stands for.

        These are the profiles named NAME_SIZE, for example a100_40gb and a100_80gb for a100; without any, all
        whose names begin with `NAME_`. Raises UnknownNameError with the nearest name.
        """
        known = self.profiles
        if name in known:
            return (known[name],)
        family = {key: one for key, one in known.items() if key.startswith(f"{name}_")}
        sizes = tuple(one for key, one in family.items() if re.fullmatch(r"[0-9.]+gb", key[len(name) + 1 :]))
        if family:
            return sizes or tuple(family.values())
        looked_in = f"profiles/, {user_folder_text()}/profiles/, the built-in ones"
        error = unknown_name("profile", name, known, looked_in=looked_in, meant=_cards_called(name, known))
        derived = "for a card without a profile, leave out --profile: launch derives one from the host's card"
        raise UnknownNameError(f"{error}\n  {derived}")

    def profile(self, name: str) -> Profile:
        """Return the profile of this name or family.

        Raises UnknownNameError with the nearest name, or with all profiles that the name stands for.
        """
        one, *others = self.profiles_meant(name)
        if others:
            names = " or ".join(other.name for other in (one, *others))
            raise UnknownNameError(f"'{name}' means {names}: name one of them")
        return one

    @functools.cached_property
    def jobs(self) -> dict[str, Path]:
        """The files of the jobs that have names."""
        return files("jobs")

    def tables(self, path: Path) -> Toml:
        """Return a TOML file whose tables the caller may change. Raises BadFileError."""
        if path not in self._read:
            self._read[path] = read_toml(path)
        return copy.deepcopy(self._read[path])

    @functools.cached_property
    def _names_of_ssh(self) -> tuple[list[str], list[str]]:
        return names_and_patterns()

    @functools.cached_property
    def _own_file(self) -> Toml:
        return _read_file(user_folder() / "hosts.toml", {"hosts"})

    @functools.cached_property
    def _project_file(self) -> Toml:
        return _read_file(PROJECT_FILE, {"hosts", *Project._fields})


def _cards_called(word: str, known: Mapping[str, Profile]) -> list[str]:
    """Return the profiles whose name or title contains a word, e.g. 4090 or h100_80gb; `mps` for an Apple chip."""

    def letters(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.casefold())

    called = letters(word)
    if re.fullmatch(r"(apple)?m[1-9](pro|max|ultra)?", called):
        return ["mps"]
    return [
        name for name, card in known.items() if called and called in f"{letters(name)} {letters(card.title)}"
    ]


def check_runtime(name: str, where: str) -> None:
    """Raise BadFileError for an unknown runtime; `where` is the text before its name in the message."""
    known = ["auto", *sorted(RUNTIMES)]
    if name not in known:
        given = "" if name in where else f" {name}"
        raise BadFileError(f"{where}{given}: expected {', '.join(known)}{nearest(name, known)}")


def implicit_host(name: str) -> Host | None:
    """Return the host of this name that needs no table, such as `kaggle`; None if the name is not that of such a kind."""
    return host_kind(name).implicit if name in PACKAGES else None


def implicit_names() -> list[str]:
    """Return the names of the hosts that need no table."""
    return [kind for kind in PACKAGES if implicit_host(kind) is not None]


def _refuse_what_is_your_own(host: Host) -> None:
    """Refuse values that a project's file may not set because its author may be a stranger.

    They decide where credentials are sent, or how much of the user's money is spent. Raises BadFileError.
    """
    if objection := host_kind(host.kind).project_objection(host):
        key, why = objection
        own = f"{user_folder_text()}/hosts.toml"
        raise BadFileError(f"{PROJECT_FILE}: hosts.{host.name}.{key}: {why}: write this table into {own}")


def _environment(host: Host, file: Path) -> str | None:
    """Return a host's `environment`.

    For this machine, a path is relative to the file's folder. For another host it must be absolute.
    """
    written = host.environment
    if not written or written.startswith(("/", "~")):
        return written
    here = (file.parent / written).absolute()
    if host.is_local and ("/" in written or here.is_dir()):
        return str(here)
    if "/" in written:
        raise BadFileError(
            f'{file}: hosts.{host.name}.environment = "{written}": expected an absolute path, ~/…, or a program\'s name'
        )
    return written


def _build(written: Build, file: Path) -> Build:
    """Return a host's build settings with absolute paths. In a file, paths are relative to the file's folder."""
    paths = {"pip_conf": written.pip_conf, "ca_bundle": written.ca_bundle}
    absolute = {
        key: str((file.parent / os.path.expanduser(path)).absolute()) for key, path in paths.items() if path
    }
    return written.model_copy(update=absolute)


def _read_file(path: Path, allowed: set[str]) -> Toml:
    if not path.is_file():
        if os.path.lexists(path):
            raise BadFileError(f"{path}: is not a regular file")
        return Toml({}, "")
    read = read_toml(path)
    for key in read.tables:
        if key not in allowed:
            raise BadFileError(f"{path}: unknown key '{key}'\n  allowed: {', '.join(sorted(allowed))}")
    return read


def _in_a_folder_above() -> str:
    """Return the `cd` command to the folder above that has a launch.toml; empty if this folder has one, or none above has."""
    if PROJECT_FILE.is_file():
        return ""
    folder = next((one for one in Path.cwd().parents if (one / PROJECT_FILE).is_file()), None)
    return f"\n  launch.toml is in a folder above   cd {shlex.quote(str(folder))}" if folder else ""


def _new_host(name: str) -> str:
    """Return the instructions for a host that has no table."""
    return f"\n  a new one   [hosts.{name}] with its address, in launch.toml     without a table   --host USER@MACHINE"
