"""The keys offered to a hop, from ssh-agent and from files. Each is unlocked once per process."""

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
    """Logs in to a hop by public key.

    ssh-agent's keys named by the configuration come first and locked files last, so that a passphrase is only asked for
    when no other key works.
    """

    def __init__(self, who: str, host: str, hop: Hop, ssh_command: str) -> None:
        """`who` is the hop's name in messages, `ssh_command` the shell command that reproduces a failure."""
        self._who = who
        self._host = host
        self._hop = hop
        self._ssh_command = ssh_command
        self._unusable: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer one key after another until one is accepted. Raises AuthRefusedError or TimeoutError."""
        tries = 0
        with contextlib.closing(_Agent(self._hop.agent)) as agent:
            for key in self._offers(agent):
                began = time.monotonic()
                tries += 1
                try:
                    more = transport.auth_publickey(self._hop.user, key)
                except paramiko.BadAuthenticationType as error:
                    wants = ", ".join(error.allowed_types)
                    raise self._refusal(f"accepts no keys, only {wants}") from error
                except (paramiko.SSHException, ValueError) as error:
                    if time.monotonic() - began >= AUTH_S:
                        raise TimeoutError from error
                    if not transport.is_active():
                        self._check_tries(tries)
                        raise
                    continue  # the server rejects this key, or it cannot sign
                if more:
                    raise self._refusal(f"accepts the key, but requires {', '.join(more)} too")
                return
        raise self._refusal(
            "refuses every key that we may offer" if tries else "requires a key, and there is none to offer"
        )

    def _check_tries(self, tries: int) -> None:
        if tries >= MOST_TRIES:
            mend = "offer fewer keys   identity_file in launch.toml, or IdentitiesOnly yes in ~/.ssh/config"
            raise self._refusal(f"hung up after {tries} wrong keys", mend)

    def _refusal(self, what: str, mend: str = "") -> AuthRefusedError:
        unusable = "".join(f"\n  not usable: {problem}" for problem in self._unusable)
        mends = "".join(f"\n  {line}" for line in (mend, f"try   {self._ssh_command}") if line)
        where = f"{self._who} ({self._hop.where})"
        return AuthRefusedError(self._host, f"{where} {what} as {self._hop.user}{unusable}{mends}")

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
        """Yield a key with each of its certificates, then without."""
        for certificate in (f"{path}-cert.pub", *self._hop.certificates):
            signed = copy.copy(key)
            with contextlib.suppress(OSError, ValueError):  # missing, or of another key
                signed.load_certificate(Path(certificate).read_text(encoding="utf-8"))
                if signed.public_blob is not None and _is_of(signed.public_blob.key_blob, key):
                    yield signed
        yield key

    def _unlock(self, path: str) -> paramiko.PKey:
        """Ask for a key's passphrase on the terminal, once per process. Raises AuthRefusedError."""
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
                    # On its own line: a spinner may be drawn at the cursor.
                    phrase = getpass.getpass(f"\rPassphrase of {path} (not shown):\n")
                except EOFError:
                    break
                with contextlib.suppress(paramiko.SSHException, ValueError):
                    _unlocked[path] = _load(path, phrase)
                    return _unlocked[path]
            raise AuthRefusedError(self._host, f"{self._who}: that is not the passphrase of {path}\n  {mend}")


class _Agent(paramiko.agent.AgentSSH):
    """The user's ssh-agent, empty if none answers at the socket."""

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
            connection.close()  # not an error: ssh continues without an agent too
            self._close()  # type: ignore[attr-defined]
        for key in self.get_keys():
            if "-cert-" in key.name:  # paramiko would offer the bare key under the certificate's name
                key.public_blob = paramiko.pkey.PublicBlob(key.name, key.blob, key.comment)  # type: ignore[assignment]

    def close(self) -> None:
        """Close the connection to the agent."""
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
    raise paramiko.SSHException("not a private key of a supported type")


def _public(path: str) -> Iterator[bytes]:
    """Yield the public keys in the public files of a private key, and in the file itself."""
    for name in (path, f"{path}.pub", f"{path}-cert.pub"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield base64.b64decode(Path(name).read_text(encoding="ascii").split()[1], validate=True)


def _is_of(blob: bytes, key: paramiko.PKey) -> bool:
    """Return whether a certificate belongs to this key: it contains the key's numbers."""
    name = key.get_name()
    return key.asbytes()[4 + len(name) :] in blob
