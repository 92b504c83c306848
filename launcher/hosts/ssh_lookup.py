"""Ask ssh what a name means in its configuration: by OpenSSH's own `ssh -G`, or by paramiko's parser if ssh is missing.

A process that stands by for the next commands asks ahead, and remembers the answers; each counts as long as ssh would say the same.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from launcher.errors import BadFileError, UnreachableError
from launcher.hosts import ssh_files
from launcher.hosts.ssh_files import SYSTEM_CONFIG, USER_CONFIG

KNOWN_HOSTS = "~/.ssh/known_hosts"
SYSTEM_SSH = "/usr/bin/ssh"
IDENTITY_FILES = "~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"
READ_S = 10
_INPUT = "/dev/stdin"


class Question(NamedTuple):
    """What ssh is asked: what a name means, for a user, a port and jump hosts that are given beside it."""

    name: str
    user: str | None
    port: int | None
    jumps: tuple[str, ...]


class _Stamps(NamedTuple):
    """What an answer of ssh follows from: files by their times and their texts, the machine's name, and who we are."""

    changed: dict[str, int]
    texts: dict[str, str | None]
    machine: str
    user: pwd.struct_passwd


class _Answer(NamedTuple):
    """What ssh said, and what that follows from."""

    values: dict[str, str]
    stamps: _Stamps


_questions: dict[Question, None] = {}
_answers: dict[Question, _Answer] = {}


def lookup(question: Question) -> dict[str, str]:
    """Return the configuration of a name by lower-case keyword; the lines of a repeated keyword are joined.

    Raises BadFileError for a configuration that ssh would reject too, UnreachableError if ssh takes too long to read it.
    """
    _questions[question] = None
    if (answer := _answers.get(question)) is not None:
        with contextlib.suppress(OSError, KeyError):
            if _stamps() == answer.stamps:
                return answer.values
    return _ask(question)[0]


def questions() -> list[Question]:
    """Return what this process has asked ssh."""
    return [*_questions]


def remember(asked: Iterable[Question]) -> None:
    """Ask ssh, and keep the answers for the forks of this process. An answer counts until something changes that it follows from."""
    for question in asked:
        with contextlib.suppress(BadFileError, UnreachableError, *_errors_in_config()):
            stamps = _stamps()
            if stamps is None or not ssh_files.are_plain(stamps.texts):
                return
            values, said = _ask(question, "-v")
            own = {os.path.expanduser(USER_CONFIG), _INPUT}  # which we read, if it is there
            if _files_read(said) - own == {*stamps.texts} - own and _stamps() == stamps:
                _answers[question] = _Answer(values, stamps)


def _stamps() -> _Stamps | None:
    """Return stamps of what an answer follows from; None for another ssh than the system's, which may have other files. Raises OSError, KeyError."""
    if shutil.which("ssh") != SYSTEM_SSH:
        return None
    texts = ssh_files.texts()
    changed = {path: os.stat(path).st_ctime_ns for path in (SYSTEM_SSH, *texts)}  # also of their rights
    return _Stamps(changed, texts, socket.gethostname(), pwd.getpwuid(os.getuid()))


def _files_read(said: str) -> set[str]:
    """Return the files that ssh has read, by what it said with -v."""
    return {*re.findall("^debug1: Reading configuration data (.*)$", said, re.MULTILINE)}


def _ask(question: Question, *more: str) -> tuple[dict[str, str], str]:
    """Return what ssh says of a name, and what it prints besides. Raises BadFileError, UnreachableError."""
    name, user, port, jumps = question
    ssh = shutil.which("ssh")
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        ssh, home = None, ""  # ssh does not run for a user without a passwd entry
    if ssh is None:
        return _by_paramiko(question), ""
    own = [] if Path(home) == Path.home() else ["-F", _INPUT]
    words = [
        *(ssh, "-G", "-T", *own, *more),
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
    return values, answer.stderr


def look_up_hint(name: str) -> str:
    """Return the line that tells a person how to ask ssh themselves."""
    return f"\n  look it up   ssh -G {shlex.quote(name)}"


def _config_of(home: Path) -> str:
    """Return the user's ssh configuration with its paths below this home.

    ssh takes the home from the system's user database, everything else here from $HOME; this is for when they differ.
    """
    path = home / ".ssh" / "config"
    with config_errors(USER_CONFIG, "ssh -G localhost"):
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    text = re.sub(r"(?mi)^(\s*include\s+)(?![/~])", rf"\1{home}/.ssh/", text).replace("~/", f"{home}/")
    return f"{text}\nHost *\n  UserKnownHostsFile {home}/.ssh/known_hosts\n  Include {SYSTEM_CONFIG}\n"


def _by_paramiko(question: Question) -> dict[str, str]:
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
            for key, value in config.lookup(question.name).items()
        }
        int(values.get("port", 22))
    values.setdefault("user", getpass.getuser())
    values.setdefault("port", "22")
    values.setdefault("identityfile", "\n".join(IDENTITY_FILES))
    values.setdefault("userknownhostsfile", KNOWN_HOSTS)
    values.setdefault("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
    port, jumps = question.port, ",".join(question.jumps)
    given = {"user": question.user, "port": str(port) if port else None, "proxyjump": jumps or None}
    return {**values, **{key: value for key, value in given.items() if value}}


@contextlib.contextmanager
def config_errors(where: str, command: str) -> Iterator[None]:
    """Turn errors in ssh's configuration into BadFileError: paramiko raises many types."""
    try:
        yield
    except _errors_in_config() as error:
        raise BadFileError(f"{where}: {error}\n  look it up   {command}") from error


def _errors_in_config() -> tuple[type[Exception], ...]:
    """Return what may be raised while a configuration is read; paramiko has a type of its own, where it was needed for that."""
    paramiko = sys.modules.get("paramiko")
    own = () if paramiko is None else (paramiko.SSHException,)
    return (ValueError, LookupError, RecursionError, OSError, *own)
