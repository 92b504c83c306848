"""The keys offered to a hop, from ssh-agent and from files. Each is unlocked once per process."""

from __future__ import annotations

import base64
import contextlib
import copy
import getpass
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko

from launcher.errors import AuthRefusedError, NoKeyError
from launcher.transport.ssh.ssh_certificates import Fields
from launcher.transport.ssh.ssh_certificates import read as read_certificate
from launcher.transport.ssh.ssh_config import Hop

AUTH_S = 10
TOUCH_S = 60  # the user must touch a hardware key
ASKED_USER_S = 0.3
"""An ssh-agent that takes more seconds than this to answer has asked the user, e.g. after `ssh-add -c`."""
ASKED_TIMES = 3
MAX_TRIES = 5  # sshd's MaxAuthTries is six

MAGIC = b"openssh-key-v1\0"

_DEFAULT_NAME = re.compile("id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?)")
_KINDS = paramiko.Ed25519Key, paramiko.RSAKey, paramiko.ECDSAKey
_unlocked: dict[str, paramiko.PKey] = {}
_asking = threading.Lock()


class KeyLogin:
    """Logs in to a hop by public key.

    ssh-agent's keys named by the configuration come first and locked files last, so that a passphrase is only
    asked for when no other key works.
    """

    def __init__(self, who: str, host: str, hop: Hop, ssh_command: str) -> None:
        """Use these hop settings.

        `who` is the hop's name in messages, `ssh_command` reproduces a failure in a shell.
        """
        self._who = who
        self._host = host
        self._hop = hop
        self._ssh_command = ssh_command
        self._unusable: list[str] = []
        self.needs_person = False
        """Whether the user had to unlock a key, touch it, or allow its use."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer one key after another until one is accepted. Raises AuthRefusedError or TimeoutError."""
        if self._hop.no_keys is not None:
            raise self._refusal(f"may get no key ({self._hop.no_keys} in ~/.ssh/config)", self._by_person())
        tries = 0
        with contextlib.closing(_Agent(self._hop.agent)) as agent:
            for key in self._offers(agent):
                began = time.monotonic()
                limit_s = transport.auth_timeout = TOUCH_S if key.get_name().startswith("sk-") else AUTH_S
                tries += 1
                try:
                    more = transport.auth_publickey(self._hop.user, key)
                except paramiko.BadAuthenticationType as error:
                    wants = ", ".join(error.allowed_types)
                    raise self._refusal(f"accepts no keys, only {wants}", self._by_person()) from error
                except (paramiko.SSHException, ValueError) as error:
                    if time.monotonic() - began >= limit_s:
                        raise TimeoutError from error
                    if not transport.is_active():
                        self._check_tries(tries)
                        raise
                    continue  # the server rejects this key, or it cannot sign
                if more:
                    wants = ", ".join(more)
                    raise self._refusal(f"accepts the key, but requires {wants} too", self._by_person())
                self.needs_person |= limit_s == TOUCH_S or agent.slowest_s > ASKED_USER_S
                return
        if tries == 0:
            raise NoKeyError(self._host, str(self._refusal("requires a key, and none is available")))
        raise self._refusal("refuses every key that launch may offer")

    def _by_person(self) -> str:
        """Return what to type for a login that needs a password or a code: a connection of ssh that launcher can use.

        Unlike `ssh -M`, ControlMaster=auto replaces the socket of a connection that has died.
        """
        login = self._ssh_command.removesuffix(" true").replace("ssh ", "ssh -fN -o ControlMaster=auto ", 1)
        if self._hop.control_path is None:
            return f"log in once, and launch uses that connection   ControlPath ~/.ssh/%C in ~/.ssh/config, then   {login}"
        return f"log in once, and launch uses that connection   {login}"

    def _check_tries(self, tries: int) -> None:
        if tries >= MAX_TRIES:
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
        blobs = {key.blob for key in held}
        for one in held:
            if one.blob in named:
                yield from self._certified(self._hop.identity_files, one)
        locked = []
        for path in self._hop.identity_files:
            if _is_in_hardware(path):
                self._note_hardware(path, blobs)
                continue
            try:
                key = _unlocked.get(path) or _load(path, None)
                self.needs_person |= path in _unlocked
            except paramiko.PasswordRequiredException:
                locked.append(path)
            except (OSError, paramiko.SSHException, ValueError) as error:
                if not (isinstance(error, FileNotFoundError) and _DEFAULT_NAME.fullmatch(Path(path).name)):
                    self._unusable.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            else:
                yield from self._certified([path], key)
        if self._hop.key_library:
            self._unusable.append(
                f"{self._hop.key_library} (PKCS11Provider): launch uses such keys through ssh-agent only"
                f"   ssh-add -s {self._hop.key_library}"
            )
        if not self._hop.identities_only:
            for other in held:
                if other.blob not in named:
                    yield from self._certified(self._hop.identity_files, other)
        for path in locked:
            if blobs.isdisjoint(_public(path)):
                yield from self._certified([path], self._unlock(path))

    def _note_hardware(self, path: str, held: set[bytes]) -> None:
        if held.isdisjoint(_public(path)):
            words = "a hardware key, which launch can use through ssh-agent only"
            self._unusable.append(f"{path}: {words}   ssh-add {path}")

    def _certified(self, paths: Sequence[str], key: paramiko.PKey) -> Iterator[paramiko.PKey]:
        """Yield a key with each of its certificates, then without."""
        if key.public_blob is not None:  # ssh-agent has signed keys too
            self._note_flaw("a certificate in ssh-agent", key.public_blob.key_blob)
        else:
            for certificate in (*(f"{path}-cert.pub" for path in paths), *self._hop.certificates):
                signed = _copy(key)
                with contextlib.suppress(OSError, ValueError):  # missing, or for another key
                    signed.load_certificate(Path(certificate).read_text(encoding="utf-8"))
                    if signed.public_blob is not None and _is_of(signed.public_blob.key_blob, key):
                        self._note_flaw(certificate, signed.public_blob.key_blob)
                        yield signed
        yield key

    def _note_flaw(self, path: str, blob: bytes) -> None:
        """Keep a certificate's flaw for the message, since sshd does not report it."""
        try:
            flaw = read_certificate(blob).flaw_for_user(self._hop.user)
        except ValueError as error:
            flaw = str(error)
        if flaw:
            self._unusable.append(f"{path}: {flaw}")

    def _unlock(self, path: str) -> paramiko.PKey:
        """Ask for a key's passphrase on the terminal, once per process. Raises AuthRefusedError."""
        mend = f"unlock it once   ssh-add {path}"
        with _asking:
            self.needs_person = True
            if path in _unlocked:
                return _unlocked[path]
            if not _has_terminal():
                raise AuthRefusedError(
                    self._host,
                    f"{self._who}: the key {path} has a passphrase, and no terminal is available to ask for it\n  {mend}",
                )
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


def _has_terminal() -> bool:
    """Whether `getpass` can ask the user: at the controlling terminal, or at standard input."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True


def may_offer(hop: Hop, public: str) -> bool:
    """Whether a login to a hop may offer the private half of a public key in OpenSSH format.

    Also True if that is unknown: for an unreadable public key, and for a locked file that does not show its
    key.
    """
    try:
        blob = base64.b64decode(public.split()[1], validate=True)
    except (IndexError, ValueError):
        return True
    with contextlib.closing(_Agent(hop.agent)) as agent:
        is_held = any(key.blob == blob for key in agent.get_keys())
    named = {one for path in (*hop.identity_files, *hop.certificates) for one in _public(path)}
    if is_held and (blob in named or not hop.identities_only):
        return True
    return any(_may_hold(path, blob) for path in hop.identity_files)


def _may_hold(path: str, blob: bytes) -> bool:
    """Whether a file is, or may be, the private half of a public key."""
    try:
        return _load(path, None).asbytes() == blob
    except paramiko.PasswordRequiredException:
        known = {*_public(path)}
        return not known or blob in known
    except (OSError, paramiko.SSHException, ValueError):
        return False


def usual_key_files() -> list[str]:
    """Return the names of this user's private keys that ssh tries without configuration, e.g. `id_ed25519`."""
    folder = Path.home() / ".ssh"
    return sorted(path.name for path in folder.glob("id_*") if _DEFAULT_NAME.fullmatch(path.name))


def agent_keys(path: str) -> int | None:
    """Return the number of keys in the ssh-agent at this socket; None if no agent answers there."""
    with contextlib.closing(_Agent(path)) as agent:
        return len(agent.get_keys()) if agent.has_answered else None


class _Agent(paramiko.agent.AgentSSH):
    """The user's ssh-agent. It has no keys if no agent answers at the socket."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self.slowest_s = 0.0
        self.has_answered = False
        if path is None:
            return
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(AUTH_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
            self.has_answered = True
        except (OSError, paramiko.SSHException):
            connection.close()  # not an error: ssh continues without an agent too
            self._close()  # type: ignore[attr-defined]
        for key in self.get_keys():
            if "-cert-" in key.name:  # paramiko would offer the bare key under the certificate's name
                key.public_blob = paramiko.pkey.PublicBlob(key.name, key.blob, key.comment)  # type: ignore[assignment]

    def _send_message(self, message: paramiko.Message) -> tuple[int, paramiko.Message]:
        began = time.monotonic()
        try:
            return super()._send_message(message)  # type: ignore[misc, no-any-return]
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

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


def _copy(key: paramiko.PKey) -> paramiko.PKey:
    """Return a copy of a key that can take its own certificate. ssh-agent's keys need a constructor call."""
    if isinstance(key, paramiko.AgentKey):
        return paramiko.AgentKey(key.agent, key.blob, key.comment)
    return copy.copy(key)


def _is_in_hardware(path: str) -> bool:
    return any(blob[4:7] == b"sk-" for blob in _public(path))  # its kind, after the length


def _public(path: str) -> Iterator[bytes]:
    """Yield the public keys in the public files of a private key, and in the file itself."""
    with contextlib.suppress(OSError, ValueError):
        yield _public_part(Path(path).read_text(encoding="ascii"))
    for name in (path, f"{path}.pub", f"{path}-cert.pub"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield base64.b64decode(Path(name).read_text(encoding="ascii").split()[1], validate=True)


def _public_part(text: str) -> bytes:
    """Return the public key in a private key file of OpenSSH's own format. That part is not encrypted.

    Raises ValueError.
    """
    body = re.fullmatch(
        r"-----BEGIN OPENSSH PRIVATE KEY-----(.*)-----END OPENSSH PRIVATE KEY-----\s*", text, re.DOTALL
    )
    data = base64.b64decode(body[1] if body else "")
    if not data.startswith(MAGIC):
        raise ValueError("not a key of OpenSSH's format")
    fields = Fields(data[len(MAGIC) :])
    for _ in range(3):  # its cipher, key derivation function and options
        fields.string()
    fields.number(4)  # the number of keys
    return fields.string()


def _is_of(blob: bytes, key: paramiko.PKey) -> bool:
    """Return whether a certificate belongs to this key: it contains the key's numbers."""
    name = key.get_name()
    return key.asbytes()[4 + len(name) :] in blob
