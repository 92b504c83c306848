"""The keys of a rented machine: the user's login key, and a host key for the first contact.

The host key in `user_data` identifies the machine at first contact. It can be read on the machine and by
anyone with the account's API key, so it is used for that contact only: the machine then generates a new one
at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from launcher.agent.record.locks import Lock
from launcher.errors import BadFileError, HostError, ServiceError
from launcher.rental.lease.renter import ProviderAccount
from launcher.rental.ledger import usual_folder
from launcher.rental.provider import Provider, ProviderReason

LOGIN_KEY = "login_key"
KEYS_LOCK = "keys.lock"
"""A lock shared by launches, which need the login key in the account.

The removal of the key takes the lock exclusively.
"""


class KeyPair(NamedTuple):
    """An Ed25519 key pair in OpenSSH format. `public` is the key type and the blob, without a comment."""

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


def new_key() -> KeyPair:
    """Return a newly generated key pair."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode())


def user_data(host_key: KeyPair) -> str:
    """Return a cloud-init configuration with this host key as the only one. JSON is valid YAML."""
    keys = {"ed25519_private": host_key.private, "ed25519_public": host_key.public}
    return f"#cloud-config\n{json.dumps({'ssh_deletekeys': True, 'ssh_keys': keys})}\n"


class LoginKey(NamedTuple):
    """This user's login key for rented machines: its private file and its public part."""

    file: Path
    public: str

    @property
    def name(self) -> str:
        """The key's name in an account. All clients that have the key use the same name."""
        return f"launch-{hashlib.sha256(self.public.encode()).hexdigest()[:16]}"


def login_key(folder: Path) -> LoginKey:
    """Return the login key in a folder. Create it if it is missing.

    If two clients create it at once, the first one's key is used. Raises OSError, BadFileError.
    """
    file = folder / LOGIN_KEY
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = new_key()
        part = folder / f".{LOGIN_KEY}.{secrets.token_hex(4)}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as out:
                out.write(made.private)
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(part, file)
        finally:
            part.unlink()
    return LoginKey(file, _public_of(file))


def holding_key() -> Lock | None:
    """Keep the login key in the account until the returned lock is released. Raises OSError."""
    usual_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    return Lock.take(str(usual_folder() / KEYS_LOCK), shared=True)


def registered_key(provider: Provider) -> LoginKey:
    """Return the login key.

    Add it to the account if it is missing. Raises ServiceError, OSError, BadFileError.
    """
    key = login_key(usual_folder())
    if not _ids_of(key, provider):
        try:
            provider.add_key(key.name, key.public)
        except ServiceError as error:
            if error.reason != ProviderReason.DUPLICATE:  # another client of this user added it first
                raise
    return key


def forget_key(account: ProviderAccount) -> None:
    """Remove the login key from an account once nothing is rented there, since the key opens machines.

    A failure is ignored; the next termination tries again.
    """
    folder = usual_folder()
    if not (folder / LOGIN_KEY).exists() or any(one.is_open for one in account.rentals()):
        return
    with contextlib.suppress(HostError, BadFileError, OSError):
        lock = Lock.take(str(folder / KEYS_LOCK), 0.0)
        if lock is None:
            return  # a launch is about to use it
        try:
            for key_id in _ids_of(login_key(folder), account.provider):
                account.provider.delete_key(key_id)
        finally:
            lock.release()


def _ids_of(key: LoginKey, provider: Provider) -> list[str]:
    """Return the ids of a key in an account. Comments of keys are ignored."""
    return [
        one.id
        for one in provider.ssh_keys()
        if one.name == key.name and one.public_key.split()[:2] == key.public.split()
    ]


def _public_of(file: Path) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadFileError(
            f"{file}: launcher's key for rented machines is damaged\n"
            "  if   launch hosts   shows no rented machine, remove the file: launcher makes another key"
        ) from error
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
