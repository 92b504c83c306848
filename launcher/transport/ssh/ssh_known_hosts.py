"""Read known_hosts files as OpenSSH's hostfile.c does: the keys, authorities and revocations of a name."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import paramiko

from launcher.transport.ssh.ssh_certificates import matches, public_key

AUTHORITY, REVOKED = "@cert-authority", "@revoked"

_HASHED_NAME = re.compile(r"\|1\|[A-Za-z0-9+/]{27}=\|[A-Za-z0-9+/]{27}=")


class KnownKey(NamedTuple):
    """One line of a known_hosts file."""

    marker: str
    names: str
    key: paramiko.PKey
    file: str
    number: int

    @property
    def place(self) -> str:
        """Its file and line number."""
        return f"{self.file}:{self.number}"

    @property
    def is_plainly_named(self) -> bool:
        """Whether it names one host: ssh-keygen -R removes the whole line."""
        return not re.search(r"[,*?!]", self.names)

    def is_for(self, name: str) -> bool:
        """Return whether its names (one hashed name, or patterns) match this one.

        A matching ! pattern excludes it.
        """
        if self.names.startswith("|"):
            is_hash = _HASHED_NAME.fullmatch(self.names)
            return bool(is_hash) and paramiko.hostkeys.HostKeys.hash_host(name, self.names) == self.names
        found = [one for one in self.names.lower().split(",") if matches(name, one.removeprefix("!"))]
        return bool(found) and not any(one.startswith("!") for one in found)


def read(file: str) -> list[KnownKey]:
    """Read a file. A missing one is empty. Raises OSError."""
    path = Path(file).expanduser()
    return list(lines(path.read_bytes(), file)) if path.is_file() else []


def lines(text: bytes, file: str) -> Iterator[KnownKey]:
    """Yield the lines that OpenSSH would accept too. `file` is their source, for messages."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        words = [word.decode(errors="replace") for word in line.split()]
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        key = _key(words[1:]) if marker in ("", AUTHORITY, REVOKED) else None
        if key is not None:
            yield KnownKey(marker, words[0], key, file, number)


def of(known: Iterable[KnownKey], name: str, marker: str = "") -> list[KnownKey]:
    """Return the lines of a name that have a marker."""
    return [one for one in known if one.marker == marker and one.is_for(name)]


def _key(words: list[str]) -> paramiko.PKey | None:
    """Return the key in two words, kind and base64. None unless it is a plain key of a known kind."""
    try:
        key = public_key(words[0], base64.b64decode(words[1]))
    except (ValueError, IndexError):
        return None
    return key if key is not None and getattr(key, "public_blob", None) is None else None
