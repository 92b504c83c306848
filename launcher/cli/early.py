"""Begin to connect to the host that a command line names, before what understands the command line is loaded.

Only words that clearly lead to a connection count: a launch, `ps` or `probe` with its host. They are read again afterwards, and a
wrong guess costs a connection that is closed unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # other verbs do without all that reaches hosts
    from launcher.hosts.ahead import Destination

PROJECT_FILE = Path("launch.toml")
_VERBS = ("run", "ps", "probe")
_WITHOUT_HOST = ("-h", "--help", "--version", "--install-completion", "--show-completion", "--probe")
"""The options with which no host is asked."""
_TEXTS = ("address", "user", "identity_file", "known_hosts")
_HELD_S = 60
"""How long a connection is held for the next command, if a host's table does not say."""


def begin(words: Sequence[str]) -> None:
    """Begin to connect; where a connection may be held already, only the way there is looked up. Mistakes in the words or the files are reported later, by the command itself."""
    own = _own(words)
    verb = "run" if not own or own[0].startswith("-") else own[0]
    if verb not in _VERBS or any(word.partition("=")[0] in _WITHOUT_HOST for word in own):
        return
    try:
        found = _destination(list(_hosts(own)), is_launch=verb == "run")
    except (OSError, ValueError, RuntimeError):  # RuntimeError: nobody knows the home folder
        return
    if found is not None:
        from launcher.hosts import ahead

        destination, may_be_held = found
        ahead.begin(destination, connects=not may_be_held)


def named_host(words: Sequence[str], folder: str) -> str | None:
    """Return the host that a command's words name, or that a project's folder has for launches; None for none, and for this machine.

    Raises OSError or ValueError for a file that cannot be read.
    """
    own = _own(words)
    names = list(_hosts(own))
    project = Path(folder) / PROJECT_FILE
    if not names and (not own or own[0].startswith("-") or own[0] == "run") and project.is_file():
        names = [str(_tables(project).get("host", "local"))]
    return names[0] if names and names != ["local"] else None


def _tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file. Raises OSError or ValueError for one that cannot be read."""
    from launcher.errors import BadFileError
    from launcher.values.toml import read_toml

    try:
        return read_toml(path)[0]
    except BadFileError as error:
        raise ValueError from error


def _hosts_of(tables: dict[str, Any]) -> dict[str, Any]:
    hosts = tables.get("hosts")
    return hosts if isinstance(hosts, dict) else {}


def _own(words: Sequence[str]) -> list[str]:
    """Return the words that are launch's, not those of the job's command."""
    return list(words[: words.index("--")]) if "--" in words else list(words)


def _hosts(words: Sequence[str]) -> Iterator[str]:
    """Yield the hosts that the words name."""
    for number, word in enumerate(words):
        if word == "--host":
            yield words[number + 1] if number + 1 < len(words) else ""
        elif word.startswith("--host="):
            yield word.removeprefix("--host=")


def _destination(hosts: list[str], *, is_launch: bool) -> tuple[Destination, bool] | None:
    """Return how the host is reached, and whether a connection may be held for it; None for this machine, an account, and what is not clear."""
    from launcher.runs.catalogue import user_folder

    project = _tables(PROJECT_FILE) if PROJECT_FILE.is_file() else {}
    default = project.get("host")
    if not hosts and is_launch and isinstance(default, str):
        hosts = [default]
    if len(hosts) != 1 or hosts[0] == "local":
        return None
    own_file = user_folder() / "hosts.toml"
    own = _hosts_of(_tables(own_file)) if own_file.is_file() else {}
    tables = own | _hosts_of(project)
    from launcher.hosts import held_socket
    from launcher.hosts.ahead import Destination
    from launcher.hosts.ssh_files import names_and_patterns, runs_programs
    from launcher.values import login_text

    table = tables.get(hosts[0])
    if table is None and hosts[0] in names_and_patterns()[0]:
        table = {"address": hosts[0]}
    if hosts[0] in _hosts_of(project):
        from launcher.runs import trust

        if not trust.is_trusted(PROJECT_FILE, trust.project_values(project, own, names_and_patterns()[0])):
            return None  # the command asks
    if not isinstance(table, dict) or table.get("kind", "machine") != "machine":
        return None
    texts = {key: value for key, value in table.items() if key in _TEXTS and isinstance(value, str)}
    if "address" not in texts or runs_programs():  # those run for a command that connects, and once
        return None
    login_text.address(texts["address"])  # raises ValueError
    login_text.user(texts.get("user", ""))
    port = table.get("port")
    destination = Destination(**texts, port=port if isinstance(port, int) else None)
    return destination, bool(table.get("hold", _HELD_S)) and bool(held_socket.sockets())
