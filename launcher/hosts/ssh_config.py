"""What ssh's configuration makes of a name: as OpenSSH's own `ssh -G` says, by paramiko's parser where there is no ssh."""

from __future__ import annotations

import contextlib
import getpass
import glob
import io
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launcher.errors import BadFileError
from launcher.values.host import Host

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
KNOWN_HOSTS = "~/.ssh/known_hosts"
IDENTITY_FILES = "~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"
READ_S = 10
MOST_HOPS = 8
MOST_INCLUDES = 16


class Hop(NamedTuple):
    """One machine on the way to a host; the last is the host itself."""

    alias: str
    address: str
    port: int
    user: str
    key_name: str
    """The name by which known_hosts files know its key."""
    known_hosts: tuple[str, ...]
    hashes_names: bool
    identity_files: tuple[str, ...]
    certificates: tuple[str, ...]
    identities_only: bool
    agent: str | None
    """The socket of the ssh-agent."""
    proxy_command: str | None

    @property
    def where(self) -> str:
        """Its address and port."""
        return f"{self.address}:{self.port}"


def hops(host: Host) -> list[Hop]:
    """Return the way to a host that has an address. What its table says wins over ssh's configuration.

    Raises BadFileError for a configuration that ssh would not take either.
    """
    *before, last = _way(str(host.address), host.user, host.port, (), MOST_HOPS)
    if host.identity_file:
        last = last._replace(identity_files=(os.path.expanduser(host.identity_file),), certificates=())
    if host.known_hosts:
        last = last._replace(known_hosts=(host.known_hosts,))
    return [*before, last]


def names_and_patterns() -> tuple[list[str], list[str]]:
    """Return the plain names behind `Host` in ssh's configuration, its included files too, and the patterns.

    A pattern that means every host is left out. What they mean is for `hops` to find out.
    """
    files = [Path(file).expanduser() for file in (USER_CONFIG, SYSTEM_CONFIG)]
    lines = [line for file in files for line in _lines(file, MOST_INCLUDES)]
    words = dict.fromkeys(word for key, words in lines if key == "host" for word in words)
    plain = [word for word in words if not re.search(r"[*?!]", word)]
    return plain, [word for word in words if word not in plain and word != "*" and not word.startswith("!")]


def _lines(path: Path, depth: int) -> Iterator[tuple[str, list[str]]]:
    """Yield key and words of each line of a file and of those that it includes; what cannot be read has none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        key, *words = re.split(r"[\s=]+", line.strip())
        words = [word.strip('"') for word in words]
        yield key.lower(), words
        for word in words if key.lower() == "include" and depth else ():
            for name in sorted(glob.glob(str(path.parent / os.path.expanduser(word)))):
                yield from _lines(Path(name), depth - 1)


def _way(name: str, user: str | None, port: int | None, jumps: tuple[str, ...], hops_left: int) -> list[Hop]:
    """Return the hops to a name, itself last; `jumps` stand before it in place of those that the configuration says."""
    values = _lookup(name, user, port, jumps)
    hop = _hop(name, values)
    through = values.get("proxyjump", "none")
    if through == "none":
        return [hop]
    if not hops_left:
        raise BadFileError(f"{USER_CONFIG}: the way to {name} has more than {MOST_HOPS} hops{_by_hand(name)}")
    *before, last = through.split(",")
    found = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[([^]]+)\]|([^:@]+))(?::(\d+))?", last)
    if found is None:
        raise BadFileError(f"{USER_CONFIG}: ProxyJump {through}: '{last}' is no host")
    jump_user, bracketed, plain, jump_port = found.groups()
    jump_port = int(jump_port) if jump_port else None
    return [*_way(bracketed or plain, jump_user, jump_port, tuple(before), hops_left - 1), hop]


def _hop(name: str, values: dict[str, str]) -> Hop:
    address, port, user = values["hostname"], int(values["port"]), values["user"]
    place = address if port == 22 else f"[{address}]:{port}"
    here = socket.gethostname()
    tokens = {
        "%": "%", "d": str(Path.home()), "h": address, "i": str(os.getuid()), "k": values.get("hostkeyalias", name),
        "L": here.partition(".")[0], "l": here, "n": name, "p": str(port), "r": user, "u": getpass.getuser(),
    }  # fmt: skip

    def expand(text: str) -> str:
        return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)

    def paths(key: str) -> tuple[str, ...]:
        return tuple(
            os.path.expanduser(expand(path))
            for path in values.get(key, "").split("\n")
            if path not in ("", "none")
        )

    files = [
        *_files(values.get("userknownhostsfile", "none")),
        *_files(values.get("globalknownhostsfile", "none")),
    ]
    agent = values.get("identityagent", "SSH_AUTH_SOCK")
    if agent == "SSH_AUTH_SOCK" or agent.startswith("$"):
        agent = os.environ.get(agent.strip("${}"), "none")
    command = values.get("proxycommand", "none")
    return Hop(
        alias=name,
        address=address,
        port=port,
        user=user,
        key_name=values.get("hostkeyalias", place).lower(),
        known_hosts=tuple(files),
        hashes_names=values.get("hashknownhosts") == "yes",
        identity_files=paths("identityfile"),
        certificates=paths("certificatefile"),
        identities_only=values.get("identitiesonly") == "yes",
        agent=None if agent in ("none", "") else os.path.expanduser(expand(agent)),
        proxy_command=None if command == "none" else expand(command),
    )


def _files(written: str) -> list[str]:
    """Split a list of files as `ssh -G` writes it: without quotes, so a space in a name is one that no path follows."""
    return [] if written == "none" else re.split(r" +(?=[/~])", written)


def _lookup(name: str, user: str | None, port: int | None, jumps: tuple[str, ...]) -> dict[str, str]:
    """Return the configuration of a name, keys in small letters; lines of a key that comes twice are joined."""
    ssh = shutil.which("ssh")
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        ssh, home = None, ""  # ssh runs for nobody whom the system does not know
    if ssh is None:
        return _by_paramiko(name, user, port, jumps)
    own = [] if Path(home) == Path.home() else ["-F", "/dev/stdin"]
    words = [
        *(ssh, "-G", "-T", *own),
        *(["-l", user] if user else []),
        *(["-p", str(port)] if port else []),
        *(["-J", ",".join(jumps)] if jumps else []),
        *("--", name),
    ]
    try:
        said = subprocess.run(
            words,
            input=_config_of(Path.home()) if own else "",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=READ_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadFileError(
            f"{USER_CONFIG}: ssh does not make sense of {name} within {READ_S} s (Match exec?){_by_hand(name)}"
        ) from error
    if said.returncode != 0:
        lines = said.stderr.strip().replace("/dev/stdin", USER_CONFIG).splitlines()
        problem = "; ".join(line for line in lines if ": terminating" not in line)
        where = "" if USER_CONFIG in problem else f"{USER_CONFIG}: "
        raise BadFileError(f"{where}{problem}{_by_hand(name)}")
    values: dict[str, str] = {}
    for line in said.stdout.splitlines():
        key, _, value = line.partition(" ")
        values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def _by_hand(name: str) -> str:
    return f"\n  what ssh makes of it   ssh -G {shlex.quote(name)}"


def _config_of(home: Path) -> str:
    """Return ssh's configuration as it would be if this were its home: ssh takes the one of the system's list of users.

    All else of ours goes by $HOME, and so does this where the two differ.
    """
    path = home / ".ssh" / "config"
    with _config_errors(USER_CONFIG, "ssh -G localhost"):
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    text = re.sub(r"(?mi)^(\s*include\s+)(?![/~])", rf"\1{home}/.ssh/", text).replace("~/", f"{home}/")
    return f"{text}\nHost *\n  UserKnownHostsFile {home}/.ssh/known_hosts\n  Include {SYSTEM_CONFIG}\n"


def _by_paramiko(name: str, user: str | None, port: int | None, jumps: tuple[str, ...]) -> dict[str, str]:
    """Return what paramiko's own parser makes of a name. It knows no Include and not every Match."""
    import paramiko  # loaded where it is used: names are looked up without it

    config = paramiko.SSHConfig()
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        path = Path(file).expanduser()
        with _config_errors(file, "install openssh-client"):
            if path.is_file():
                config.parse(io.StringIO(path.read_text(encoding="utf-8", errors="replace")))
    with _config_errors(USER_CONFIG, "install openssh-client"):
        found = {
            key: "\n".join(value) if isinstance(value, list) else str(value)
            for key, value in config.lookup(name).items()
        }
        int(found.get("port", 22))
    found.setdefault("user", getpass.getuser())
    found.setdefault("port", "22")
    found.setdefault("identityfile", "\n".join(IDENTITY_FILES))
    found.setdefault("userknownhostsfile", KNOWN_HOSTS)
    found.setdefault("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
    given = {"user": user, "port": str(port) if port else None, "proxyjump": ",".join(jumps) or None}
    return {**found, **{key: value for key, value in given.items() if value}}


@contextlib.contextmanager
def _config_errors(where: str, command: str) -> Iterator[None]:
    """The one place where what is wrong in ssh's configuration becomes ours: paramiko raises what comes."""
    from paramiko import SSHException

    try:
        yield
    except (ValueError, LookupError, RecursionError, SSHException, OSError) as error:
        raise BadFileError(f"{where}: {error}\n  what ssh makes of it   {command}") from error
