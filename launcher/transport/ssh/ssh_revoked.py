"""The files of RevokedHostKeys: public keys, or a revocation list, which ssh-keygen reads."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import paramiko

from launcher.transport.ssh.ssh_certificates import SUFFIX, public_key

KRL_MAGIC = b"SSHKRL\n\0"
CHECK_S = 10
MAX_BYTES = 64 * 1024 * 1024


class UnreadableRevocationsError(Exception):
    """Raised when a file cannot be read or parsed. OpenSSH refuses every host in that case."""


def is_revoked(file: str, key: paramiko.PKey, authority: bytes | None) -> bool:
    """Return whether a file revokes a host's key, its certificate, or the certificate's authority.

    Raises UnreadableRevocationsError.
    """
    try:
        with open(file, "rb") as opened:
            text = opened.read(MAX_BYTES)
    except OSError as error:
        raise UnreadableRevocationsError(error.strerror or str(error)) from error
    if text.startswith(KRL_MAGIC):
        return _by_ssh_keygen(file, key)
    return any(blob in (key.asbytes(), authority) for blob in _blobs(text))


def _blobs(text: bytes) -> Iterator[bytes]:
    """Yield the keys of a file with one key per line."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        words = line.decode(errors="replace").split()
        if not words or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode("".join(words[1:2]), validate=True)
            key = public_key(words[0].removesuffix(SUFFIX), blob)
        except ValueError as error:
            raise UnreadableRevocationsError(f"line {number} is not a public key") from error
        yield key.asbytes() if key is not None else blob


def _by_ssh_keygen(file: str, key: paramiko.PKey) -> bool:
    """Ask OpenSSH whether a key revocation list revokes a key."""
    signed = getattr(key, "public_blob", None)
    kind, blob = (signed.key_type, signed.key_blob) if signed else (key.get_name(), key.asbytes())
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        path = Path(folder, "shown.pub")
        path.write_text(f"{kind} {base64.b64encode(blob).decode()} shown\n", encoding="ascii")
        try:
            done = subprocess.run(
                ["ssh-keygen", "-Q", "-f", file, str(path)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CHECK_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise UnreadableRevocationsError(
                "a revocation list is read by ssh-keygen, which is not installed"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise UnreadableRevocationsError(f"ssh-keygen -Q takes longer than {CHECK_S} s") from error
    if done.returncode == 0:
        return False
    if done.stdout.strip().endswith("REVOKED"):
        return True
    raise UnreadableRevocationsError(done.stderr.strip().rpartition("\n")[2] or "ssh-keygen -Q failed")
