"""Who we are: the keys offered to a hop, from ssh-agent and from files, each unlocked once in a process."""

from __future__ import annotations

import base64
import contextlib
import copy
import getpass
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko

from launcher.errors import AuthRefusedError
from launcher.hosts.ssh_config import Hop

AUTH_S = 10
ASKED_TIMES = 3
MOST_TRIES = 5  # sshd's MaxAuthTries is six

_DEFAULT_NAME = re.compile("id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?)")
_KINDS = paramiko.Ed25519Key, paramiko.RSAKey, paramiko.ECDSAKey
_unlocked: dict[str, paramiko.PKey] = {}
_asking = threading.Lock()


class Login:
    """How we log in to a hop. ssh-agent's keys that the configuration names come first, locked files last.

    So nobody is asked for a passphrase while another key would do.
    """

    def __init__(self, who: str, host: str, hop: Hop, by_hand: str) -> None:
        """`who` is what the hop is called in messages, `by_hand` the ssh line that shows the same."""
        self._who = who
        self._host = host
        self._hop = hop
        self._by_hand = by_hand
        self._unusable: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer one key after the other until one is taken. Raises AuthRefusedError or TimeoutError."""
        tries = 0
        with contextlib.closing(_Agent(self._hop.agent)) as agent:
            for key in self._offers(agent):
                began = time.monotonic()
                tries += 1
                try:
                    more = transport.auth_publickey(self._hop.user, key)
                except paramiko.BadAuthenticationType as error:
                    wants = ", ".join(error.allowed_types)
                    raise self._refusal(f"takes no keys, but {wants}") from error
                except (paramiko.SSHException, ValueError) as error:
                    if time.monotonic() - began >= AUTH_S:
                        raise TimeoutError from error
                    if not transport.is_active():
                        self._check_tries(tries)
                        raise
                    continue  # this key is not for it, or cannot sign
                if more:
                    raise self._refusal(f"takes the key, and wants {', '.join(more)} beside it")
                return
        raise self._refusal(
            "refuses every key we may offer" if tries else "wants a key, and there is none to offer"
        )

    def _check_tries(self, tries: int) -> None:
        if tries >= MOST_TRIES:
            raise self._refusal(f"hung up at the {tries}th wrong key: set identity_file, or IdentitiesOnly,")

    def _refusal(self, what: str) -> AuthRefusedError:
        told = "".join(f"\n  not usable: {one}" for one in self._unusable)
        return AuthRefusedError(
            self._host,
            f"{self._who} ({self._hop.where}) {what} as {self._hop.user}{told}\n  try   {self._by_hand}",
        )

    def _offers(self, agent: _Agent) -> Iterator[paramiko.PKey]:
        named = {blob for path in self._hop.identity_files for blob in _public(path)}
        named |= {blob for path in self._hop.certificates for blob in _public(path)}
        held = agent.get_keys()
        yield from (key for key in held if key.blob in named)
        locked = []
        for path in self._hop.identity_files:
            try:
                key = _unlocked.get(path) or _load(path, None)
            except paramiko.PasswordRequiredException:
                locked.append(path)
            except (OSError, paramiko.SSHException, ValueError) as error:
                if not (isinstance(error, FileNotFoundError) and _DEFAULT_NAME.fullmatch(Path(path).name)):
                    self._unusable.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            else:
                yield from self._certified(path, key)
        if not self._hop.identities_only:
            yield from (key for key in held if key.blob not in named)
        blobs = {key.blob for key in held}
        for path in locked:
            if blobs.isdisjoint(_public(path)):
                yield from self._certified(path, self._unlock(path))

    def _certified(self, path: str, key: paramiko.PKey) -> Iterator[paramiko.PKey]:
        """Yield a key as its certificates name it, then as it is."""
        for certificate in (f"{path}-cert.pub", *self._hop.certificates):
            signed = copy.copy(key)
            with contextlib.suppress(OSError, ValueError):  # none there, or another key's
                signed.load_certificate(Path(certificate).read_text(encoding="utf-8"))
                if signed.public_blob is not None and _is_of(signed.public_blob.key_blob, key):
                    yield signed
        yield key

    def _unlock(self, path: str) -> paramiko.PKey:
        """Ask for a key's passphrase on the terminal, once in this process. Raises AuthRefusedError."""
        mend = f"unlock it once   ssh-add {path}"
        with _asking:
            if path in _unlocked:
                return _unlocked[path]
            try:
                os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
            except OSError as error:
                raise AuthRefusedError(
                    self._host,
                    f"{self._who}: the key {path} has a passphrase, and there is no terminal to ask for it\n  {mend}",
                ) from error
            for _ in range(ASKED_TIMES):
                try:
                    # A line of its own: a spinner may be drawn where the cursor stands.
                    phrase = getpass.getpass(f"\rPassphrase of {path} (not shown):\n")
                except EOFError:
                    break
                with contextlib.suppress(paramiko.SSHException, ValueError):
                    _unlocked[path] = _load(path, phrase)
                    return _unlocked[path]
            raise AuthRefusedError(self._host, f"{self._who}: that is not the passphrase of {path}\n  {mend}")


class _Agent(paramiko.agent.AgentSSH):
    """The user's ssh-agent, if one answers at a socket."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        if path is None:
            return
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(AUTH_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException):
            connection.close()  # no agent is no error: ssh goes on without one, too
            self._close()  # type: ignore[attr-defined]
        for key in self.get_keys():
            if "-cert-" in key.name:  # paramiko would offer the bare key under the certificate's name
                key.public_blob = paramiko.pkey.PublicBlob(key.name, key.blob, key.comment)  # type: ignore[assignment]

    def close(self) -> None:
        """Let it go."""
        self._close()  # type: ignore[attr-defined]


def _load(path: str, phrase: str | None) -> paramiko.PKey:
    """Read a private key. Raises PasswordRequiredException, SSHException, ValueError or OSError."""
    for kind in _KINDS:
        try:
            return kind.from_private_key_file(path, phrase)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError, IndexError, TypeError):
            continue
    raise paramiko.SSHException("no private key that we can read")


def _public(path: str) -> Iterator[bytes]:
    """Yield what the public files beside a key, or the file itself, say it is."""
    for name in (path, f"{path}.pub", f"{path}-cert.pub"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield base64.b64decode(Path(name).read_text(encoding="ascii").split()[1], validate=True)


def _is_of(blob: bytes, key: paramiko.PKey) -> bool:
    """Tell whether a certificate is one of this key: it holds the key's numbers."""
    name = key.get_name()
    return key.asbytes()[4 + len(name) :] in blob
