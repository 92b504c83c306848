"""OpenSSH certificates: parsed strictly, and checked like OpenSSH's sshkey_cert_check_authority."""

from __future__ import annotations

import re
import struct
import time
from typing import NamedTuple

import paramiko
from paramiko.pkey import UnknownKeyType

SUFFIX = "-cert-v01@openssh.com"
USER, HOST = 1, 2

# The number of strings of the key itself, after the nonce. Source: PROTOCOL.certkeys
_KEY_FIELDS = {"ssh-rsa": 2, "ssh-ed25519": 1, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2}
_KEY_FIELDS |= {"ecdsa-sha2-nistp521": 2, "sk-ssh-ed25519": 2, "sk-ecdsa-sha2-nistp256": 3}


class Certificate(NamedTuple):
    """A certificate whose signature is its authority's."""

    role: int
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical_options: bytes
    authority: bytes
    """The authority's public key."""
    authority_kind: str
    is_checked: bool
    """Whether the signature could be checked. paramiko lacks hardware keys."""
    algorithm: str
    """The algorithm of the signature."""

    def untimely(self) -> str:
        """Return why it is not valid now, or ""."""
        now = time.time()
        if now < self.valid_after:
            return f"it is valid only from {_shown(self.valid_after)}"
        return f"it expired on {_shown(self.valid_before)}" if now >= self.valid_before else ""

    def flaw_for_user(self, name: str) -> str:
        """Return why sshd would refuse a user's login with it, or "".

        The host's own settings are unknown here.
        """
        if self.role != USER:
            return "it is not a certificate for users"
        if why := self.untimely():
            return why
        if name not in self.principals:
            return f"it is for {', '.join(self.principals) or 'no user at all'}, not for {name}"
        return ""

    def flaw_for_host(self, name: str, algorithms: tuple[str, ...]) -> str:
        """Return why it does not prove a host's name, or "".

        `algorithms` are the allowed signature algorithms.
        """
        if not self.is_checked:
            return f"its authority's key is of the kind {self.authority_kind}, which launch cannot check"
        if self.role != HOST:
            return "it is not a certificate for hosts"
        if why := self.untimely():
            return why
        if not any(matches(name, pattern) for pattern in self.principals):
            return f"it is for {', '.join(self.principals) or 'no name at all'}, not for {name}"
        if self.critical_options:
            return "it has critical options that launch does not know"
        if self.algorithm not in algorithms:
            return (
                f"its signature is of the algorithm {self.algorithm}, which CASignatureAlgorithms leaves out"
            )
        return ""


def read(blob: bytes) -> Certificate:
    """Parse a certificate and check its signature. Raises ValueError unless the bytes are exactly one."""
    fields = Fields(blob)
    kind = fields.string().decode(errors="replace")
    strings = _KEY_FIELDS.get(kind.removesuffix(SUFFIX))
    if strings is None or not kind.endswith(SUFFIX):
        raise ValueError(f"a certificate of an unknown kind: {kind}")
    for _ in range(1 + strings):  # the nonce, and the key
        fields.string()
    fields.number(8)  # the serial number
    role = fields.number(4)
    fields.string()  # the key id
    principals = Fields(fields.string()).strings()
    after, before = fields.number(8), fields.number(8)
    options = fields.string()
    fields.string()  # extensions: OpenSSH ignores those of a host
    fields.string()  # reserved
    authority = fields.string()
    signed = fields.done
    signature = fields.string()
    fields.end()
    authority_kind = Fields(authority).string().decode(errors="replace")
    key = public_key(authority_kind, authority)
    if key is not None and not _is_signed(key, signed, signature):
        raise ValueError("its signature is not its authority's")
    return Certificate(
        role=role,
        principals=tuple(name.decode(errors="replace") for name in principals),
        valid_after=after,
        valid_before=before,
        critical_options=options,
        authority=key.asbytes() if key is not None else authority,
        authority_kind=authority_kind,
        is_checked=key is not None,
        algorithm=Fields(signature).string().decode(errors="replace"),
    )


def _is_signed(key: paramiko.PKey, data: bytes, signature: bytes) -> bool:
    try:
        return bool(key.verify_ssh_sig(data, paramiko.Message(signature)))
    except (paramiko.SSHException, OverflowError, TypeError) as error:  # the signature has impossible numbers
        raise ValueError(str(error)) from error


def public_key(kind: str, blob: bytes) -> paramiko.PKey | None:
    """Return a public key, or the key of a certificate.

    None for a kind that paramiko lacks. Raises ValueError.
    """
    if not Fields(blob).string().startswith(kind.encode()):
        raise ValueError(f"the key is not of the kind {kind}")
    try:
        return paramiko.PKey.from_type_string(kind, blob)
    except UnknownKeyType:
        return None
    except (paramiko.SSHException, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern with * and ? as wildcards."""
    letters = {"*": ".*", "?": "."}
    return bool(
        re.fullmatch("".join(letters.get(char, re.escape(char)) for char in pattern), name, re.DOTALL)
    )


class Fields:
    """The fields of RFC 4251. paramiko's own reader fills missing bytes with zeros."""

    def __init__(self, data: bytes) -> None:
        """Read from the first byte on. Each method raises ValueError if bytes are missing."""
        self._data = data
        self._at = 0

    @property
    def done(self) -> bytes:
        """The bytes read so far."""
        return self._data[: self._at]

    def number(self, size: int) -> int:
        """Read a number of this many bytes."""
        return int.from_bytes(self._take(size), "big")

    def string(self) -> bytes:
        """Read bytes preceded by their length."""
        return self._take(struct.unpack(">I", self._take(4))[0])

    def strings(self) -> list[bytes]:
        """Read all remaining strings."""
        found = []
        while self._at < len(self._data):
            found.append(self.string())
        return found

    def end(self) -> None:
        """Raise ValueError if bytes remain."""
        if self._at != len(self._data):
            raise ValueError("more bytes than a certificate has")

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise ValueError("fewer bytes than a certificate has")
        self._at += size
        return piece


def _shown(seconds: int) -> str:
    """Return a time as a date, or as a number for years outside the calendar."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"
