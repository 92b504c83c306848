"""Look up a name in ssh's configuration, with OpenSSH's own `ssh -G`, or with paramiko's parser if ssh is missing."""

from __future__ import annotations

import contextlib
import fnmatch
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
from typing import NamedTuple, Protocol

from launcher.errors import BadFileError
from launcher.hosts import ssh_files
from launcher.hosts.ssh_files import SYSTEM_CONFIG, USER_CONFIG

KNOWN_HOSTS = "~/.ssh/known_hosts"
SYSTEM_SSH = "/usr/bin/ssh"
PLAIN_ALGORITHMS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
"""The algorithms of host keys that both OpenSSH and paramiko have, in OpenSSH's order."""
ALGORITHMS = (*(f"{one}-cert-v01@openssh.com" for one in PLAIN_ALGORITHMS), *PLAIN_ALGORITHMS)
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
    *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
)
"""The ciphers of OpenSSH's default that paramiko has too, the fastest first: the first two need no code beside them."""
DEFAULT_ORDERS = CIPHERS, (*CIPHERS[2:], *CIPHERS[:2])
"""The orders in which the versions of OpenSSH name them when the configuration says nothing."""
OLD_CIPHERS = "aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"
"""The ciphers that paramiko has too, for a configuration that names them."""
IDENTITY_FILES = "~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"
LATER = {letter: f"\0{letter}" for letter in "HItfK"}
"""What KnownHostsCommand's tokens become that only the connection can fill in."""
_INPUT = "/dev/stdin"
READ_S = 10
MOST_HOPS = 8


class Hop(NamedTuple):
    """One machine on the route to a host; the last one is the host itself."""

    alias: str
    address: str
    port: int
    user: str
    key_name: str
    """The name of its key in known_hosts files."""
    key_alias: str | None
    """HostKeyAlias: that name as it is written, without a port."""
    known_hosts: tuple[str, ...]
    known_hosts_command: tuple[str, ...]
    """A program whose lines count as a known_hosts file's; the tokens of LATER are left in it."""
    revoked_hosts: tuple[str, ...]
    """The files of RevokedHostKeys."""
    host_algorithms: tuple[str, ...]
    authority_algorithms: tuple[str, ...]
    ciphers: tuple[str, ...]
    accepts_new_keys: bool
    checks_address: bool
    """Whether known_hosts files must not have another key for its IP address."""
    hashes_names: bool
    identity_files: tuple[str, ...]
    certificates: tuple[str, ...]
    identities_only: bool
    agent: str | None
    """The socket of the ssh-agent."""
    proxy_command: str | None
    key_library: str | None
    """A library of PKCS#11 for keys in hardware."""

    @property
    def where(self) -> str:
        """Its address and port."""
        return f"{self.address}:{self.port}"

    @property
    def certified_name(self) -> str:
        """Its name in host certificates."""
        return self.key_alias or self.address.lower()


class Login(Protocol):
    """What a host's own table says of the way there."""

    @property
    def address(self) -> str | None:
        """An address, or an alias of ssh's configuration."""

    @property
    def user(self) -> str | None:
        """Who one logs in as."""

    @property
    def port(self) -> int | None:
        """The port of its sshd."""

    @property
    def identity_file(self) -> str | None:
        """The only key that is offered."""

    @property
    def known_hosts(self) -> str | None:
        """The only file of known keys."""


def hops(host: Login) -> list[Hop]:
    """Return the route to a host that has an address. The host's own table overrides ssh's configuration.

    Raises BadFileError for a configuration that ssh would reject too.
    """
    *before, last = _route(str(host.address), host.user, host.port, (), MOST_HOPS)
    if host.identity_file:
        last = last._replace(identity_files=(os.path.expanduser(host.identity_file),), certificates=())
    if host.known_hosts:
        last = last._replace(known_hosts=(host.known_hosts,))
    return [*before, last]


def _route(
    name: str, user: str | None, port: int | None, jumps: tuple[str, ...], hops_left: int
) -> list[Hop]:
    """Return the hops to a name, ending with it; `jumps` replace the jump hosts of the configuration."""
    values = _lookup(Question(name, user, port, jumps))
    hop = _hop(name, values)
    through = values.get("proxyjump", "none")
    if through == "none":
        return [hop]
    if not hops_left:
        raise BadFileError(
            f"{USER_CONFIG}: the route to {name} has more than {MOST_HOPS} hops{_look_up_hint(name)}"
        )
    *before, last = through.split(",")
    written = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[([^]]+)\]|([^:@]+))(?::(\d+))?", last)
    if written is None:
        raise BadFileError(f"{USER_CONFIG}: ProxyJump {through}: '{last}' is not a host")
    jump_user, bracketed, plain, jump_port = written.groups()
    jump_port = int(jump_port) if jump_port else None
    return [*_route(bracketed or plain, jump_user, jump_port, tuple(before), hops_left - 1), hop]


def _hop(name: str, values: dict[str, str]) -> Hop:
    address, port, user = values["hostname"], int(values["port"]), values["user"]
    key_name = address if port == 22 else f"[{address}]:{port}"
    here = socket.gethostname()
    tokens = {
        "%": "%", "d": str(Path.home()), "h": address, "i": str(os.getuid()), "k": values.get("hostkeyalias", name),
        "L": here.partition(".")[0], "l": here, "n": name, "p": str(port), "r": user, "u": getpass.getuser(),
    }  # fmt: skip

    def expand(text: str) -> str:
        return re.sub("%(.)", lambda token: tokens.get(token[1], token[0]), text)

    def expand_words(command: str | None) -> tuple[str, ...]:
        return tuple(
            re.sub("%(.)", lambda token: {**tokens, **LATER}.get(token[1], token[0]), word)
            for word in _words(command)
        )

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
    alias = values.get("hostkeyalias")
    return Hop(
        alias=name,
        address=address,
        port=port,
        user=user,
        key_name=(alias or key_name).lower(),
        key_alias=alias,
        known_hosts=tuple(files),
        known_hosts_command=expand_words(values.get("knownhostscommand")),
        revoked_hosts=tuple(
            os.path.expanduser(expand(file)) for file in _files(values.get("revokedhostkeys", "none"))
        ),
        host_algorithms=_chosen(values.get("hostkeyalgorithms"), ALGORITHMS),
        authority_algorithms=_chosen(values.get("casignaturealgorithms"), PLAIN_ALGORITHMS),
        ciphers=_ciphers(values.get("ciphers")),
        accepts_new_keys=values.get("stricthostkeychecking") in ("accept-new", "no", "off", "false"),
        checks_address=values.get("checkhostip") == "yes",
        hashes_names=values.get("hashknownhosts") == "yes",
        identity_files=paths("identityfile"),
        certificates=paths("certificatefile"),
        identities_only=values.get("identitiesonly") == "yes",
        agent=None if agent in ("none", "") else os.path.expanduser(expand(agent)),
        proxy_command=None if command == "none" else expand(command),
        key_library=next(iter(paths("pkcs11provider")), None),
    )


def _words(written: str | None) -> list[str]:
    """Split a command into its words. Raises BadFileError."""
    if written in (None, "none"):
        return []
    with _config_errors(f"{USER_CONFIG}: KnownHostsCommand", "man ssh_config"):
        return shlex.split(written)


def _chosen(written: str | None, all_of: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list of algorithms; what begins with + - or ^ changes the default, as `ssh -G` has done already."""
    patterns = (written or "").lstrip("+-^").split(",")
    named = [one for pattern in patterns for one in all_of if fnmatch.fnmatchcase(one, pattern)]
    if not written or written.startswith("+"):
        return all_of
    if written.startswith("-"):
        return tuple(one for one in all_of if one not in named)
    return tuple(dict.fromkeys([*named, *all_of] if written.startswith("^") else named))


def _ciphers(written: str | None) -> tuple[str, ...]:
    """Return the ciphers that a configuration allows, in its order; the fastest first if it has that of OpenSSH's default.

    One that allows only what paramiko lacks counts as the default.
    """
    known = CIPHERS if not written or written[0] in "+-^" else (*CIPHERS, *OLD_CIPHERS)
    chosen = _chosen(written, known)
    return chosen if chosen and chosen not in DEFAULT_ORDERS else CIPHERS


def _files(written: str) -> list[str]:
    """Split a list of files as `ssh -G` prints it: unquoted, so a space separates only before a / or ~."""
    return [] if written == "none" else re.split(r" +(?=[/~])", written)


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


def questions() -> list[Question]:
    """Return what this process has asked ssh."""
    return [*_questions]


def remember(asked: Iterable[Question]) -> None:
    """Ask ssh, and keep the answers for the forks of this process. An answer counts until something changes that it follows from."""
    for question in asked:
        with contextlib.suppress(BadFileError, *_errors_in_config()):
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


def _lookup(question: Question) -> dict[str, str]:
    """Return the configuration of a name by lower-case keyword; the lines of a repeated keyword are joined."""
    _questions[question] = None
    if (answer := _answers.get(question)) is not None:
        with contextlib.suppress(OSError, KeyError):
            if _stamps() == answer.stamps:
                return answer.values
    return _ask(question)[0]


def _files_read(said: str) -> set[str]:
    """Return the files that ssh has read, by what it said with -v."""
    return {*re.findall("^debug1: Reading configuration data (.*)$", said, re.MULTILINE)}


def _ask(question: Question, *more: str) -> tuple[dict[str, str], str]:
    """Return what ssh says of a name, and what it prints besides. Raises BadFileError."""
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
        raise BadFileError(
            f"{USER_CONFIG}: ssh -G {name} takes longer than {READ_S} s (Match exec?){_look_up_hint(name)}"
        ) from error
    if answer.returncode != 0:
        lines = answer.stderr.strip().replace(_INPUT, USER_CONFIG).splitlines()
        problem = "; ".join(line for line in lines if ": terminating" not in line)
        where = "" if USER_CONFIG in problem else f"{USER_CONFIG}: "
        raise BadFileError(f"{where}{problem}{_look_up_hint(name)}")
    values: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        key, _, value = line.partition(" ")
        values[key] = f"{values[key]}\n{value}" if key in values else value
    return values, answer.stderr


def _look_up_hint(name: str) -> str:
    return f"\n  look it up   ssh -G {shlex.quote(name)}"


def _config_of(home: Path) -> str:
    """Return the user's ssh configuration with its paths below this home.

    ssh takes the home from the system's user database, everything else here from $HOME; this is for when they differ.
    """
    path = home / ".ssh" / "config"
    with _config_errors(USER_CONFIG, "ssh -G localhost"):
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    text = re.sub(r"(?mi)^(\s*include\s+)(?![/~])", rf"\1{home}/.ssh/", text).replace("~/", f"{home}/")
    return f"{text}\nHost *\n  UserKnownHostsFile {home}/.ssh/known_hosts\n  Include {SYSTEM_CONFIG}\n"


def _by_paramiko(question: Question) -> dict[str, str]:
    """Look up a name with paramiko's own parser, which lacks Include and some kinds of Match."""
    import paramiko  # loaded here because `ssh -G` works without it

    config = paramiko.SSHConfig()
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        path = Path(file).expanduser()
        with _config_errors(file, "install openssh-client"):
            if path.is_file():
                config.parse(io.StringIO(path.read_text(encoding="utf-8", errors="replace")))
    with _config_errors(USER_CONFIG, "install openssh-client"):
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
def _config_errors(where: str, command: str) -> Iterator[None]:
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
