"""Look up a name in ssh's configuration with `ssh -G`, or with paramiko's parser if ssh is missing."""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import BadFileError, UnreachableError
from launcher.transport.ssh.ssh_files import SYSTEM_CONFIG, USER_CONFIG

KNOWN_HOSTS = "~/.ssh/known_hosts"
IDENTITY_FILES = "~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"
READ_S = 10
_INPUT = "/dev/stdin"


def lookup(name: str, user: str | None, port: int | None, jumps: Sequence[str]) -> dict[str, str]:
    """Return the configuration of a name by lower-case keyword. Join the lines of a repeated keyword.

    `user`, `port` and `jumps` override the configuration. Raises BadFileError for a configuration that ssh
    would reject too, UnreachableError if ssh takes too long to read it.
    """
    ssh = shutil.which("ssh")
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        ssh, home = None, ""  # ssh does not run for a user without a passwd entry
    if ssh is None:
        return _by_paramiko(name, user, port, jumps)
    own = [] if Path(home) == Path.home() else ["-F", _INPUT]
    words = [
        *(ssh, "-G", "-T", *own),
        *(["-l", user] if user else []),
        *(["-p", str(port)] if port else []),
        *(["-J", ",".join(jumps)] if jumps else []),
        *("--", name),
    ]
    try:
        answer = subprocess.run(
            words,
            input=_config_of(Path.home()) if own else "",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=READ_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        slow = f"ssh -G takes longer than {READ_S} s: is this machine under load, or does a `Match exec` of {USER_CONFIG} hang?"
        raise UnreachableError(name, f"{name}: {slow}{look_up_hint(name)}") from error
    if answer.returncode != 0:
        lines = answer.stderr.strip().replace(_INPUT, USER_CONFIG).splitlines()
        problem = "; ".join(line for line in lines if ": terminating" not in line)
        where = "" if USER_CONFIG in problem else f"{USER_CONFIG}: "
        raise BadFileError(f"{where}{problem}{look_up_hint(name)}")
    values: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        key, _, value = line.partition(" ")
        values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def look_up_hint(name: str) -> str:
    """Return the line that shows users how to ask ssh themselves."""
    return f"\n  look it up   ssh -G {shlex.quote(name)}"


def _config_of(home: Path) -> str:
    """Return the user's ssh configuration with its paths below this home.

    ssh takes the home from the system's user database, launcher from $HOME. Use this if they differ.
    """
    path = home / ".ssh" / "config"
    with config_errors(USER_CONFIG, "ssh -G localhost"):
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    text = re.sub(r"(?mi)^(\s*include\s+)(?![/~])", rf"\1{home}/.ssh/", text).replace("~/", f"{home}/")
    return f"{text}\nHost *\n  UserKnownHostsFile {home}/.ssh/known_hosts\n  Include {SYSTEM_CONFIG}\n"


def _by_paramiko(name: str, user: str | None, port: int | None, jumps: Sequence[str]) -> dict[str, str]:
    """Look up a name with paramiko's own parser, which lacks Include and some kinds of Match."""
    import paramiko  # loaded here because `ssh -G` works without it

    config = paramiko.SSHConfig()
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        path = Path(file).expanduser()
        with config_errors(file, "install openssh-client"):
            if path.is_file():
                config.parse(io.StringIO(path.read_text(encoding="utf-8", errors="replace")))
    with config_errors(USER_CONFIG, "install openssh-client"):
        values = {
            key: "\n".join(value) if isinstance(value, list) else str(value)
            for key, value in config.lookup(name).items()
        }
        int(values.get("port", 22))
    values.setdefault("user", getpass.getuser())
    values.setdefault("port", "22")
    values.setdefault("identityfile", "\n".join(IDENTITY_FILES))
    values.setdefault("userknownhostsfile", KNOWN_HOSTS)
    values.setdefault("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
    given = {"user": user, "port": str(port) if port else None, "proxyjump": ",".join(jumps)}
    return {**values, **{key: value for key, value in given.items() if value}}


@contextlib.contextmanager
def config_errors(where: str, command: str) -> Iterator[None]:
    """Turn errors in ssh's configuration into BadFileError: paramiko raises many types."""
    try:
        yield
    except _errors_in_config() as error:
        raise BadFileError(f"{where}: {error}\n  look it up   {command}") from error


def _errors_in_config() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a configuration may raise, with paramiko's if it is loaded."""
    paramiko = sys.modules.get("paramiko")
    own = () if paramiko is None else (paramiko.SSHException,)
    return (ValueError, LookupError, RecursionError, OSError, *own)
