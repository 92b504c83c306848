"""What never travels unless a `.launchignore` includes it by name: credentials, private keys, environments, caches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise

from launcher.values.cargo import Why

MOST_KEY_BYTES = 64_000
"""Larger files are not read for a private key."""

_BEGINS_WITH_KEY = re.compile(rb"(?:\xef\xbb\xbf)?\s*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_HOLDS_KEY = re.compile(rb'\s*\{.*"private_key"\s*:\s*"-----BEGIN ', re.DOTALL)
"""A key of a Google service account."""

_SECRET_NAMES = frozenset((
    "_netrc", ".aws", ".azure", ".boto", ".databrickscfg", ".dockercfg", ".git-credentials", ".gnupg", ".kaggle", ".kube",
    ".lambda_cloud", ".modal.toml", ".my.cnf", ".netrc", ".npmrc", ".oci", ".password-store", ".pgpass", ".pypirc", ".s3cfg", ".ssh",
    ".vast_api_key", ".vault-token", "kaggle.json",
))  # fmt: skip
_SECRET_BELOW = {
    ".config": ("gcloud", "gh", "hub", "rclone", "vastai"),
    "launch": ("lambda_key",),
    ".docker": ("config.json",),
    ".huggingface": ("token", "stored_tokens"),
    "huggingface": ("token", "stored_tokens"),
    ".streamlit": ("secrets.toml",),
}
"""Names that are secrets in a folder of a certain name."""
_SECRET_STARTS = (".env",)
_KEY_STARTS = ("id_rsa", "id_ed25519", "id_ecdsa", "id_dsa")
KEY_ENDS = (".pem", ".p12", ".pfx", ".ppk", ".kdbx", ".jks")
_OTHERS = {".git": Why.REPOSITORY, "launch.toml": Why.SETTINGS}
_FOLDERS = {"__pycache__": Why.CACHE, "wandb": Why.TRACKER}


def of_name(name: str, folder: str, *, is_folder: bool) -> Why | None:
    """Return why a file or folder of this name, in a folder of the name `folder`, does not travel; None if it does."""
    name = name.lower()  # macOS does not tell `.ENV` from `.env`
    if name.startswith(_KEY_STARTS) or name.endswith(KEY_ENDS):
        return Why.KEY_NAME
    if (
        name in _SECRET_NAMES
        or name.startswith(_SECRET_STARTS)
        or name in _SECRET_BELOW.get(folder.lower(), ())
    ):
        return Why.CREDENTIALS
    if name in _OTHERS:
        return _OTHERS[name]
    return _FOLDERS.get(name) if is_folder else None


def credentials_folder(path: str) -> str | None:
    """Return the name of the first folder on an absolute path that is for credentials, for example `.ssh`."""
    parts = path.split(os.sep)
    for above, name in pairwise(parts):
        if name in _SECRET_NAMES or name in _SECRET_BELOW.get(above, ()):
            return name
    return None


def secrets_among(names: Iterable[str]) -> list[str]:
    """Return the names that are credentials or keys, sorted."""
    return sorted(
        name for name in names if (why := of_name(name, "", is_folder=False)) is not None and why.is_secret
    )


def holds_private_key(content: bytes) -> bool:
    """Return whether the content of a small file is a private key: in PEM, or of a Google service account."""
    return _BEGINS_WITH_KEY.match(content) is not None or _HOLDS_KEY.match(content) is not None
