"""Check each hop's host key against that hop's own known_hosts files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import paramiko

from launcher.errors import HostKeyError
from launcher.hosts.new_keys import NEW_KEYS
from launcher.hosts.ssh_config import KNOWN_HOSTS, Hop

_HASHED_NAME = re.compile(r"\|1\|[A-Za-z0-9+/]{27}=\|[A-Za-z0-9+/]{27}=")


class Trust(paramiko.MissingHostKeyPolicy):
    """Accepts only the keys that known_hosts files have for a hop.

    Fabric itself accepts any key. A refusal names the key and the command that accepts it.
    """

    def __init__(self, who: str, host: str, hop: Hop, before: Hop | None, client: paramiko.SSHClient) -> None:
        """Read the files, and make the hop's client refuse all other keys. Raises HostKeyError.

        `who` is the hop's name in messages, `before` the hop through which it is reached.
        """
        self._who = who
        self._host = host
        self._hop = hop
        self._before = before
        self._file = next(iter(hop.known_hosts), KNOWN_HOSTS)
        entries = [entry for file in hop.known_hosts for entry in self._entries(file)]
        # Someone else may hold a revoked key, so it is refused for every host.
        self._revoked = {key.asbytes() for marker, _, key in entries if marker == "@revoked"}
        known = client.get_host_keys()
        name = hop.address if hop.port == 22 else f"[{hop.address}]:{hop.port}"  # as paramiko looks it up
        for marker, names, key in entries:
            # A @cert-authority key signs host keys and is not one. paramiko does not check such signatures.
            if marker or key.asbytes() in self._revoked or not self._matches_hop(names):
                continue
            if key.get_name() not in (known.lookup(name) or ()):
                known.add(name, key.get_name(), key)
        client.set_missing_host_key_policy(self)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Refuse a new key, or record it if the user asked for that. Raises HostKeyError."""
        if not NEW_KEYS.are_accepted or key.asbytes() in self._revoked:
            raise self.refusal(key, None)
        self._record(key)
        NEW_KEYS.report(
            f"{self._who}'s host key is new, and accepted:  {_shown(key)}\n  recorded in {self._file}"
        )

    def refusal(self, key: paramiko.PKey, expected: paramiko.PKey | None) -> HostKeyError:
        """Return the error for a refused key; `expected` is the known key of this hop, or None."""
        again = "the same command with --accept-new-host-key"
        scan = self._keyscan(_kind(key))
        file = _pasteable(self._file)
        if key.asbytes() in self._revoked:
            text = (
                f"host key is REVOKED: it shows {_shown(key)}, which a @revoked line of known_hosts forbids\n"
                "  this may be another machine; ask the host's owner"
            )
        elif expected is None:
            text = f"host key is not known:  {_shown(key)}\n  if you trust it   {scan or again}"
            text += f"\n  or                {again}" if scan else f", which records it in {file}"
        else:
            remove = f"ssh-keygen -R {shlex.quote(self._hop.key_name)} -f {file}"
            text = (
                f"host key has CHANGED: it shows {_shown(key)}, expected {expected.fingerprint}\n"
                "  either the machine was reinstalled, or someone intercepts the connection; ask its owner first\n"
                f"  if you trust it   {remove}" + (f" && {scan}" if scan else f", then {again}")
            )
        return HostKeyError(self._host, f"{self._who}'s {text}")

    def _keyscan(self, kind: str) -> str | None:
        """Return the command that records the hop's key, run where the hop is reachable; None if no command can."""
        hop = self._hop
        if hop.proxy_command or (self._before and self._before.proxy_command):
            return None
        if hop.key_name not in (hop.address.lower(), f"[{hop.address.lower()}]:{hop.port}"):
            return None  # ssh-keyscan writes the address, not the alias
        at = f"-p {hop.port} " if hop.port != 22 else ""
        through = f"ssh {shlex.quote(self._before.alias)} " if self._before else ""
        return f"{through}ssh-keyscan {at}-t {kind} {shlex.quote(hop.address)} >> {_pasteable(self._file)}"

    def _record(self, key: paramiko.PKey) -> None:
        """Append a key to the hop's known_hosts file, as ssh does."""
        name = self._hop.key_name
        if self._hop.hashes_names:
            name = paramiko.hostkeys.HostKeys.hash_host(name)
        path = Path(os.path.expanduser(self._file))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                lacks_end = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                file.write(f"{chr(10) * lacks_end}{name} {key.get_name()} {key.get_base64()}\n".encode())
        except OSError as error:
            raise HostKeyError(
                self._host, f"{self._who}: its new key cannot be recorded in {path}: {error.strerror}"
            ) from error

    def _entries(self, file: str) -> Iterator[tuple[str, list[str], paramiko.PKey]]:
        """Read a file as ssh does: yield marker, names and key of each line; skip any other line."""
        path = Path(os.path.expanduser(file))
        try:
            lines = path.read_bytes().split(b"\n") if path.is_file() else []
        except OSError as error:
            raise HostKeyError(
                self._host, f"{self._host}: {path} cannot be read: {error.strerror}"
            ) from error
        for line in lines:
            if line.lstrip().startswith(b"#"):
                continue
            words = [word.decode(errors="replace") for word in line.split()]
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            try:
                entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words[:3]))
            except (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, ValueError, OverflowError):
                continue
            if entry is not None:
                yield marker, entry.hostnames, entry.key

    def _matches_hop(self, names: list[str]) -> bool:
        """Return whether a line's names (plain, hashed or patterns) match this hop; a matching ! pattern excludes it."""
        key_name = self._hop.key_name
        is_match = False
        for name in names:
            if _HASHED_NAME.fullmatch(name):
                is_match |= paramiko.hostkeys.HostKeys.hash_host(key_name, name) == name
            elif _matches(key_name, name.removeprefix("!")):
                if name.startswith("!"):
                    return False
                is_match = True
        return is_match


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, in which only * and ? are special."""
    letters = {"*": ".*", "?": "."}
    return bool(re.fullmatch("".join(letters.get(char, re.escape(char)) for char in pattern.lower()), name))


def _shown(key: paramiko.PKey) -> str:
    return f"{_kind(key).upper()} {key.fingerprint}"


def _kind(key: paramiko.PKey) -> str:
    return key.get_name().removeprefix("ssh-").partition("-")[0]


def _pasteable(path: str) -> str:
    """Quote a path for a shell, except a leading ~/."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
