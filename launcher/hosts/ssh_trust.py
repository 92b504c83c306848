"""Whom we believe: each hop's key is held against that hop's own known_hosts files."""

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
    """The keys that a hop may show: those that known_hosts files hold for it, and none else.

    Fabric by itself accepts any. A refusal says which key it is, and how it is accepted.
    """

    def __init__(self, who: str, host: str, hop: Hop, before: Hop | None, client: paramiko.SSHClient) -> None:
        """Read the files, and set the hop's client to refuse all other keys. Raises HostKeyError.

        `who` is what the hop is called in messages, `before` the hop that it is reached through.
        """
        self._who = who
        self._host = host
        self._hop = hop
        self._before = before
        self._file = next(iter(hop.known_hosts), KNOWN_HOSTS)
        entries = [entry for file in hop.known_hosts for entry in self._entries(file)]
        # A key that was revoked is in a stranger's hands: here it is refused whatever host it was revoked for.
        self._revoked = {key.asbytes() for marker, _, key in entries if marker == "@revoked"}
        known = client.get_host_keys()
        place = hop.address if hop.port == 22 else f"[{hop.address}]:{hop.port}"  # by which paramiko asks
        for marker, names, key in entries:
            # @cert-authority marks who may sign a key, which paramiko does not check; it is no host's own.
            if marker or key.asbytes() in self._revoked or not self._is_meant(names):
                continue
            if key.get_name() not in (known.lookup(place) or ()):
                known.add(place, key.get_name(), key)
        client.set_missing_host_key_policy(self)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Refuse, or note a new key where a person said so. Raises HostKeyError."""
        if not NEW_KEYS.are_accepted or key.asbytes() in self._revoked:
            raise self.refusal(key, None)
        self._note(key)
        NEW_KEYS.tell(f"{self._who}'s host key is new, and accepted:  {_shown(key)}\n  noted in {self._file}")

    def refusal(self, key: paramiko.PKey, expected: paramiko.PKey | None) -> HostKeyError:
        """Return why a key that was shown is refused; `expected` is the one that is known, if any is."""
        again = "the same command with --accept-new-host-key"
        scan = self._keyscan(_kind(key))
        file = _pasteable(self._file)
        if key.asbytes() in self._revoked:
            text = (
                f"host key is REVOKED: it shows {_shown(key)}, which a @revoked line of known_hosts forbids\n"
                "  whoever shows it may be somebody else; ask the machine's owner"
            )
        elif expected is None:
            text = f"host key is not known:  {_shown(key)}\n  if you trust it   {scan or again}"
            text += f"\n  or                {again}" if scan else f", which notes it in {file}"
        else:
            remove = f"ssh-keygen -R {shlex.quote(self._hop.key_name)} -f {file}"
            text = (
                f"host key has CHANGED: it shows {_shown(key)}, known is {expected.fingerprint}\n"
                "  either the machine was made anew, or somebody stands in between; ask its owner first\n"
                f"  if you trust it   {remove}" + (f" && {scan}" if scan else f", then {again}")
            )
        return HostKeyError(self._host, f"{self._who}'s {text}")

    def _keyscan(self, kind: str) -> str | None:
        """Return the line that notes the hop's key, run where the hop can be reached; None where no line does it."""
        hop = self._hop
        if hop.proxy_command or (self._before and self._before.proxy_command):
            return None
        if hop.key_name not in (hop.address.lower(), f"[{hop.address.lower()}]:{hop.port}"):
            return None  # a scan writes the address, not the alias
        at = f"-p {hop.port} " if hop.port != 22 else ""
        through = f"ssh {shlex.quote(self._before.alias)} " if self._before else ""
        return f"{through}ssh-keyscan {at}-t {kind} {shlex.quote(hop.address)} >> {_pasteable(self._file)}"

    def _note(self, key: paramiko.PKey) -> None:
        """Add a key to the hop's file, as ssh does."""
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
                self._host, f"{self._who}: its new key cannot be noted in {path}: {error.strerror}"
            ) from error

    def _entries(self, file: str) -> Iterator[tuple[str, list[str], paramiko.PKey]]:
        """Read a file as ssh does: yield marker, names and key of each line, and pass over what is no such line."""
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

    def _is_meant(self, names: list[str]) -> bool:
        """Tell whether a line's names, plain, hashed or patterns, mean this hop; one with a ! before it excludes it."""
        wanted = self._hop.key_name
        is_meant = False
        for name in names:
            if _HASHED_NAME.fullmatch(name):
                is_meant |= paramiko.hostkeys.HostKeys.hash_host(wanted, name) == name
            elif _matches(wanted, name.removeprefix("!")):
                if name.startswith("!"):
                    return False
                is_meant = True
        return is_meant


def _matches(name: str, pattern: str) -> bool:
    """Tell whether a name is one of a pattern's, in which only * and ? are special."""
    letters = {"*": ".*", "?": "."}
    return bool(re.fullmatch("".join(letters.get(char, re.escape(char)) for char in pattern.lower()), name))


def _shown(key: paramiko.PKey) -> str:
    return f"{_kind(key).upper()} {key.fingerprint}"


def _kind(key: paramiko.PKey) -> str:
    return key.get_name().removeprefix("ssh-").partition("-")[0]


def _pasteable(path: str) -> str:
    """Quote a path for a shell, and leave a leading ~ to it."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
