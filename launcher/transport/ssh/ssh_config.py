"""The route to a host from ssh's configuration: its hops, with their host key checks and login keys.

`ssh_lookup.py` asks ssh for the configuration.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import re
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.errors import BadFileError
from launcher.transport.ssh.ssh_files import USER_CONFIG
from launcher.transport.ssh.ssh_lookup import config_errors, look_up_hint, lookup
from launcher.transport.tcp import ANYWHERE, CONNECT_S, Family, Source
from launcher.values.host import Host

PLAIN_ALGORITHMS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
"""The host key algorithms that both OpenSSH and paramiko have, in OpenSSH's order."""
ALGORITHMS = (*(f"{one}-cert-v01@openssh.com" for one in PLAIN_ALGORITHMS), *PLAIN_ALGORITHMS)
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
    *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
)
"""The ciphers of OpenSSH's default that paramiko has too, the fastest first.

The first two need no separate MAC.
"""
DEFAULT_ORDERS = CIPHERS, (*CIPHERS[2:], *CIPHERS[:2])
"""The default orders in which versions of OpenSSH list them."""
OLD_CIPHERS = "aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"
"""More ciphers that paramiko has, for a configuration that names them."""
_SAME = {
    "curve25519-sha256@libssh.org": "curve25519-sha256",
    "mlkem768x25519-sha256": "sntrup761x25519-sha512@openssh.com",
}
"""Key exchanges of paramiko that are allowed with another one: its other name, or its successor in OpenSSH 9.9."""
LATER = {letter: f"\0{letter}" for letter in "HItfK"}
"""The placeholders for KnownHostsCommand's tokens that only the connection can fill in."""
MAX_HOPS = 8
_FAMILIES: dict[str, Family] = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
"""AddressFamily -> its number."""


class Hop(NamedTuple):
    """One machine on the route to a host. The last one is the host itself."""

    alias: str
    address: str
    port: int
    user: str
    key_name: str
    """The name of its key in known_hosts files."""
    key_alias: str | None
    """HostKeyAlias: that name as written, without a port."""
    known_hosts: tuple[str, ...]
    known_hosts_command: tuple[str, ...]
    """A program whose output counts as a known_hosts file. It still contains the tokens of LATER."""
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
    """A PKCS#11 library for hardware keys."""
    control_path: str | None = None
    """ControlPath: the socket of a connection that ssh holds open."""
    source: Source = ANYWHERE
    connect_s: float = CONNECT_S
    """ConnectTimeout, in seconds."""
    key_exchanges: str | None = None
    """KexAlgorithms as written: names or patterns, separated by commas."""
    macs: str | None = None
    no_keys: str | None = None
    """The option that forbids a login by key, as PubkeyAuthentication does."""

    @property
    def where(self) -> str:
        """Its address and port."""
        return f"{self.address}:{self.port}"

    @property
    def certified_name(self) -> str:
        """Its name in host certificates."""
        return self.key_alias or self.address.lower()


def hops(host: Host) -> list[Hop]:
    """Return the route to a host that has an address. The host's own table overrides ssh's configuration.

    Raises BadFileError for a configuration that ssh would reject too, UnreachableError if ssh takes too long
    to read it.
    """
    *before, last = _route(str(host.address), host.user, host.port, (), MAX_HOPS)
    if host.identity_file:
        last = last._replace(identity_files=(os.path.expanduser(host.identity_file),), certificates=())
    if host.known_hosts:
        last = last._replace(known_hosts=(host.known_hosts,))
    return [*before, last]


def _route(
    name: str, user: str | None, port: int | None, jumps: tuple[str, ...], hops_left: int
) -> list[Hop]:
    """Return the hops to a name, ending with it. `jumps` replace the jump hosts of the configuration."""
    values = lookup(name, user, port, jumps)
    hop = _hop(name, values)
    through = values.get("proxyjump", "none")
    if through == "none":
        return [hop]
    if not hops_left:
        raise BadFileError(
            f"{USER_CONFIG}: the route to {name} has more than {MAX_HOPS} hops{look_up_hint(name)}"
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

    def expand_all(text: str, tokens: Mapping[str, str] = tokens) -> str:
        def value(found: re.Match[str]) -> str:
            return _variable(name, found[2]) if found[2] else tokens.get(found[1], found[0])

        return re.sub(r"%(.)|\$\{([^}]+)\}", value, text)

    def paths(key: str) -> tuple[str, ...]:
        return tuple(
            os.path.expanduser(expand_all(path))
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
        known_hosts_command=tuple(
            expand_all(word, {**tokens, **LATER}) for word in _words(values.get("knownhostscommand"))
        ),
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
        control_path=_written(values, "controlpath"),  # ssh has filled in its tokens
        source=Source(
            values.get("bindaddress"),
            values.get("bindinterface"),
            _FAMILIES.get(values.get("addressfamily", "any"), socket.AF_UNSPEC),
        ),
        connect_s=float(_written(values, "connecttimeout") or CONNECT_S),
        key_exchanges=values.get("kexalgorithms"),
        macs=values.get("macs"),
        no_keys=_against_keys(values),
    )


def _written(values: Mapping[str, str], key: str) -> str | None:
    """Return a value; None for `none`."""
    value = values.get(key, "none")
    return None if value == "none" else value


def _against_keys(values: Mapping[str, str]) -> str | None:
    """Return the option of a configuration that forbids a login by key."""
    if values.get("pubkeyauthentication") in ("no", "false"):
        return "PubkeyAuthentication no"
    preferred = values.get("preferredauthentications", "publickey")
    return None if "publickey" in preferred.split(",") else f"PreferredAuthentications {preferred}"


def allowed(option: str, written: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the algorithms of paramiko that a configuration allows, in paramiko's order.

    Raises ValueError, with the option's name, if it allows none of them.
    """
    chosen = {*_chosen(written, (*known, *_SAME.values()))}
    found = tuple(one for one in known if one in chosen or _SAME.get(one) in chosen)
    if not found:
        raise ValueError(f"{option} {written}: launch has none of them")
    return found


def _variable(host: str, name: str) -> str:
    """Return an environment variable in a path. `ssh -G` does not expand it.

    Raises BadFileError if it is not set: ssh fails in that case too.
    """
    value = os.environ.get(name)
    if value is None:
        raise BadFileError(
            f"{USER_CONFIG}: ${{{name}}} is not set in the environment{look_up_hint(host)} | grep {name}"
        )
    return value


def _words(written: str | None) -> list[str]:
    """Split a command into its words. Raises BadFileError."""
    if written in (None, "none"):
        return []
    with config_errors(f"{USER_CONFIG}: KnownHostsCommand", "man ssh_config"):
        return shlex.split(written)


def _chosen(written: str | None, all_of: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list of algorithms.

    A list with a leading + - or ^ changes the default. OpenSSH's `ssh -G` prints lists with the change already made.
    """
    patterns = (written or "").lstrip("+-^").split(",")
    named = [one for pattern in patterns for one in all_of if fnmatch.fnmatchcase(one, pattern)]
    if not written or written.startswith("+"):
        return all_of
    if written.startswith("-"):
        return tuple(one for one in all_of if one not in named)
    return tuple(dict.fromkeys([*named, *all_of] if written.startswith("^") else named))


def _ciphers(written: str | None) -> tuple[str, ...]:
    """Return the ciphers that a configuration allows, in its order.

    If that is OpenSSH's default order, the fastest come first. A configuration that allows only ciphers
    missing in paramiko counts as the default.
    """
    known = CIPHERS if not written or written[0] in "+-^" else (*CIPHERS, *OLD_CIPHERS)
    chosen = _chosen(written, known)
    return chosen if chosen and chosen not in DEFAULT_ORDERS else CIPHERS


def _files(written: str) -> list[str]:
    """Split a list of files as `ssh -G` prints it: unquoted, so a space separates only before a / or ~."""
    return [] if written == "none" else re.split(r" +(?=[/~])", written)
