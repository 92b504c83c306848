"""Check each hop's host key like OpenSSH's check_host_key.

Where ssh would ask the user, the key is refused.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paramiko

from launcher.errors import HostKeyError
from launcher.transport.ssh import ssh_known_hosts as known_hosts
from launcher.transport.ssh.new_keys import NEW_KEYS
from launcher.transport.ssh.ssh_certificates import SUFFIX, Certificate
from launcher.transport.ssh.ssh_certificates import read as read_certificate
from launcher.transport.ssh.ssh_config import Hop
from launcher.transport.ssh.ssh_known_hosts import AUTHORITY, REVOKED, KnownKey
from launcher.transport.ssh.ssh_lookup import KNOWN_HOSTS, READ_S
from launcher.transport.ssh.ssh_revoked import UnreadableRevocationsError, is_revoked


class HostKeyVerdict(NamedTuple):
    """The result of comparing a host's key with the known keys of its name."""

    is_known: bool
    others: tuple[KnownKey, ...] = ()
    """The known keys of the name, if the host's key is none of them."""
    flaw: str = ""
    """The reason why the host's certificate does not count."""


class Trust(paramiko.MissingHostKeyPolicy):
    """Accepts only a hop's keys in known_hosts files, or keys signed by an authority in them.

    The hop's client must know no keys itself, so that it consults this policy about each key. A refusal names
    the true cause.
    """

    def __init__(self, who: str, host: str, hop: Hop, before: Hop | None, peer: str | None) -> None:
        """Read the hop's files. Raises HostKeyError.

        `who` is the hop's name in messages and `before` the previous hop. `peer` is the hop's IP address if
        this machine itself has connected to the hop.
        """
        self._who = who
        self._host = host
        self._hop = hop
        self._before = before
        self._file = next(iter(hop.known_hosts), KNOWN_HOSTS)
        self._ip = _checked_address(hop, peer)
        self._known = [line for file in hop.known_hosts for line in self._read(file)]

    def algorithms(self) -> tuple[str, ...]:
        """Return the host key algorithms to ask for, those of known keys first. Source: order_hostkeyalgs."""
        known = [*self._known, *self._from_command("ORDER", None)]
        name = self._hop.key_name
        revoked = {line.key.asbytes() for line in known_hosts.of(known, name, REVOKED)}
        kinds = {
            line.key.get_name() for line in known_hosts.of(known, name) if line.key.asbytes() not in revoked
        }
        wanted = self._hop.host_algorithms
        if not wanted or _kind_of(wanted[0]) in kinds:
            return wanted
        has_authority = bool(known_hosts.of(known, name, AUTHORITY))
        first = [one for one in wanted if _kind_of(one) in kinds or (has_authority and one.endswith(SUFFIX))]
        return tuple(dict.fromkeys([*first, *wanted]))

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Accept a host's key, or refuse it.

        Record a new key if the user asked for that. Raises HostKeyError.
        """
        certificate = self._certificate(key)
        authority = certificate.authority if certificate else None
        self._known += self._from_command("HOSTNAME", key)
        self._refuse_revoked(key, authority)
        verdict = self._judge(self._hop.key_name, key, certificate)
        if verdict.others:
            raise self._changed(key, verdict)
        ip_keys = known_hosts.of(self._known, self._ip) if self._ip else []
        if ip_keys and not authority and not _has(ip_keys, key):
            raise self._differs(key, ip_keys[0])
        if not verdict.is_known:
            if not (NEW_KEYS.are_accepted or self._hop.accepts_new_keys):
                raise self._unknown(key, verdict)
            self._record(key)
            NEW_KEYS.report(
                f"{self._who}'s host key is new, and accepted:  {_shown(key)}\n  recorded in {self._file}"
            )
        if self._ip and not ip_keys and not authority:
            with contextlib.suppress(OSError):  # later commands then cannot compare the address's key
                self._append(self._ip, key)

    def _judge(self, name: str, key: paramiko.PKey, certificate: Certificate | None) -> HostKeyVerdict:
        """Judge a certificate, then the bare key in it, then both under the name without its port."""
        bare = self._hop.address.lower()
        has_bare = self._hop.key_alias is None and name != bare
        flaw = ""
        if certificate:
            authorities = known_hosts.of(self._known, name, AUTHORITY)
            flaw = self._flaw(certificate, authorities)
            if not flaw:
                return HostKeyVerdict(is_known=True)
            if not authorities and has_bare and self._judge(bare, key, certificate).is_known:
                return HostKeyVerdict(is_known=True)
        own = known_hosts.of(self._known, name)
        if own:
            return HostKeyVerdict(_has(own, key), () if _has(own, key) else tuple(own), flaw)
        return HostKeyVerdict(has_bare and self._judge(bare, key, None).is_known, (), flaw)

    def _flaw(self, certificate: Certificate, authorities: list[KnownKey]) -> str:
        if not any(line.key.asbytes() == certificate.authority for line in authorities):
            return "no @cert-authority line has its authority"
        return certificate.flaw_for_host(self._hop.certified_name, self._hop.authority_algorithms)

    def _certificate(self, key: paramiko.PKey) -> Certificate | None:
        blob = getattr(key, "public_blob", None)
        if blob is None:
            return None
        try:
            return read_certificate(blob.key_blob)
        except ValueError as error:
            words = f"host certificate is broken: {error}\n  ask the host's owner to have it signed again"
            raise self._error(words) from error

    def _refuse_revoked(self, key: paramiko.PKey, authority: bytes | None) -> None:
        """Refuse a revoked key for every name, since another person may have it."""
        for line in self._known:
            if line.marker == REVOKED and line.key.asbytes() in (key.asbytes(), authority):
                raise self._revoked(key, f"the @revoked line {line.place}")
        for file in self._hop.revoked_hosts:
            try:
                found = is_revoked(file, key, authority)
            except UnreadableRevocationsError as error:
                words = f"host key cannot be checked: RevokedHostKeys {file}: {error}"
                raise self._error(
                    f"{words}\n  ssh then refuses every host; correct the file, or its line in ~/.ssh/config"
                ) from error
            if found:
                raise self._revoked(key, f"RevokedHostKeys {file}")

    def _revoked(self, key: paramiko.PKey, where: str) -> HostKeyError:
        words = f"host key is REVOKED: it shows {_shown(key)}, and {where} forbids this key or its authority"
        return self._error(f"{words}\n  this may be another machine; ask the host's owner for its new key")

    def _differs(self, key: paramiko.PKey, known: KnownKey) -> HostKeyError:
        return self._error(
            f"host key is not that of its address {self._ip} (CheckHostIP): it shows {_shown(key)}, "
            f"{known.place} has {known.key.fingerprint}\n"
            "  either the name now leads to another machine, or someone intercepts the connection; ask its owner\n"
            f"  {_compare(key)}"
        )

    def _unknown(self, key: paramiko.PKey, verdict: HostKeyVerdict) -> HostKeyError:
        """Return the refusal of an unknown key."""
        again = "the same command with --accept-new-host-key"
        scan = self._keyscan(_kind(key))
        text = f"host key is not known:  {_shown(key)}"
        if verdict.flaw:
            text += f"\n  its certificate does not count: {verdict.flaw}"
        text += f"\n  {_compare(key)}\n  if you trust it   {scan or again}"
        text += (
            f"\n  or                {again}" if scan else f", which records it in {_pasteable(self._file)}"
        )
        return self._error(text)

    def _changed(self, key: paramiko.PKey, verdict: HostKeyVerdict) -> HostKeyError:
        """Return the refusal of a key whose name has other known keys."""
        alike = [one for one in verdict.others if one.key.get_name() == key.get_name()] or verdict.others
        line = alike[0]
        expected = " or ".join(f"{one.key.fingerprint} ({one.place})" for one in alike)
        text = f"host key has CHANGED: it shows {_shown(key)}, expected {expected}"
        if verdict.flaw:
            text += f"\n  its certificate does not count: {verdict.flaw}"
        text += (
            "\n  either the machine was reinstalled, or someone intercepts the connection; ask its owner first"
            f"\n  {_compare(key)}"
        )
        scan = self._keyscan(_kind(key))
        accept = f" && {scan}" if scan else ", then the same command with --accept-new-host-key"
        remove = f"ssh-keygen -R {shlex.quote(self._hop.key_name)} -f {_pasteable(line.file)}{accept}"
        if not all(one.is_plainly_named and one.file in self._hop.known_hosts for one in verdict.others):
            remove = f"correct {line.place} by hand: it is not for this host alone"
        return self._error(f"{text}\n  if you trust it   {remove}")

    def _error(self, text: str) -> HostKeyError:
        return HostKeyError(self._host, f"{self._who}'s {text}")

    def _keyscan(self, kind: str) -> str | None:
        """Return the command that records the hop's key, or None if no command can.

        It runs ssh-keyscan on the previous hop, or here if this is the first.
        """
        hop = self._hop
        if hop.proxy_command or (self._before and self._before.proxy_command):
            return None
        if hop.key_alias is not None:
            return None  # ssh-keyscan writes the address, not the alias
        at = f"-p {hop.port} " if hop.port != 22 else ""
        through = f"ssh {shlex.quote(self._before.alias)} " if self._before else ""
        folder, file = os.path.dirname(self._file), _pasteable(self._file)
        is_there = os.path.isdir(os.path.expanduser(folder) or ".")
        make = "" if is_there else f"mkdir -m 700 -p {_pasteable(folder)} && "
        return f"{make}{through}ssh-keyscan {at}-t {kind} {shlex.quote(hop.address)} >> {file}"

    def _record(self, key: paramiko.PKey) -> None:
        try:
            self._append(self._hop.key_name, key)
        except OSError as error:
            words = f"its new key cannot be recorded in {self._file}: {error.strerror}"
            raise HostKeyError(self._host, f"{self._who}: {words}") from error

    def _append(self, name: str, key: paramiko.PKey) -> None:
        """Append a key to the hop's known_hosts file, as ssh does. Raises OSError."""
        if self._hop.hashes_names:
            name = paramiko.hostkeys.HostKeys.hash_host(name)
        path = Path(os.path.expanduser(self._file))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            lacks_end = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write(f"{chr(10) * lacks_end}{name} {key.get_name()} {key.get_base64()}\n".encode())

    def _read(self, file: str) -> list[KnownKey]:
        try:
            return known_hosts.read(file)
        except OSError as error:
            path = os.path.expanduser(file)
            words = f"{self._host}: {path} cannot be read: {error.strerror}"
            raise HostKeyError(self._host, words) from error

    def _from_command(self, invocation: str, key: paramiko.PKey | None) -> Iterator[KnownKey]:
        """Yield the lines of KnownHostsCommand. Raises HostKeyError if it fails, as ssh does."""
        if not self._hop.known_hosts_command:
            return
        values = {
            "H": self._hop.key_name,
            "I": invocation,
            "t": key.get_name() if key else "NONE",
            "f": key.fingerprint if key else "NONE",
            "K": key.get_base64() if key else "NONE",
        }
        words = [_filled(word, values) for word in self._hop.known_hosts_command]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=READ_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            text = f"host key cannot be checked: KnownHostsCommand {words[0]}: {error}"
            raise self._error(f"{text}\n  correct its line in ~/.ssh/config") from error
        yield from known_hosts.lines(done.stdout, f"KnownHostsCommand {words[0]}")


def _filled(word: str, values: dict[str, str]) -> str:
    for letter, value in values.items():
        word = word.replace(f"\0{letter}", value)
    return word


def _checked_address(hop: Hop, peer: str | None) -> str | None:
    """Return the known_hosts name of the address that CheckHostIP compares. None if ssh compares none."""
    if not hop.checks_address or peer is None or peer == hop.address:
        return None
    if ipaddress.ip_address(peer.partition("%")[0]).is_loopback:
        return None
    return peer if hop.port == 22 else f"[{peer}]:{hop.port}"


def _has(lines: list[KnownKey], key: paramiko.PKey) -> bool:
    return any(line.key.asbytes() == key.asbytes() for line in lines)


def _kind_of(algorithm: str) -> str:
    """Return the kind of key that a host key algorithm uses."""
    kind = algorithm.removesuffix(SUFFIX)
    return "ssh-rsa" if kind.startswith("rsa-") else kind


def _shown(key: paramiko.PKey) -> str:
    return f"{_kind(key).upper()} {key.fingerprint}"


def _kind(key: paramiko.PKey) -> str:
    return key.get_name().removeprefix("ssh-").partition("-")[0]


def _compare(key: paramiko.PKey) -> str:
    return (
        f"compare it first  ssh-keygen -lf /etc/ssh/ssh_host_{_kind(key)}_key.pub   on the host's own console"
    )


def _pasteable(path: str) -> str:
    """Quote a path for a shell, except a leading ~/."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
