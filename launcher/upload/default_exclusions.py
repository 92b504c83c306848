"""The default exclusions, unless a `.launchignore` includes them by name: credentials, keys, caches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import IO

from launcher.base import untrusted_json
from launcher.values.upload_selection import ExclusionReason

ROOT_ID = "root-id"
"""The file that marks a root, the folder in which an agent keeps runs (see `transport/agent_file.py`)."""
SAMPLE = 64_000
"""The bytes at either end of a file that are searched for a key. A file of up to twice as many is read whole.

The middle of a larger file is not read.
"""

_MARK = rb"-{4,5} ?BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_BEGINS_WITH_KEY = re.compile(rb"\s*" + _MARK)
_HOLDS_KEY = re.compile(  # a file that only quotes a key's first line has no base64 line after it
    rb"^[ \t]*" + _MARK + rb"[ \t]*\r?\n(?:[\w-]+:[^\n]*\n|[ \t]*\r?\n)*[ \t]*[A-Za-z0-9+/=]{8,}[ \t]*\r?$",
    re.MULTILINE,
)
_JSON_HOLDS_KEY = re.compile(rb'\s*\{.*"[\w-]+"\s*:\s*"' + _MARK, re.DOTALL)
_PUTTY = re.compile(rb"^PuTTY-User-Key-File-\d+:", re.MULTILINE)
_AGE = re.compile(rb"^[ \t]*AGE-SECRET-KEY-[0-9A-Z-]{16,}", re.MULTILINE)
_DER = re.compile(
    rb"\x30(?:[\x00-\x80]|\x81.|\x82..)(?:"
    rb"\x02\x01[\x00\x01]\x30(?:\x82..|\x81?.)\x06"  # PKCS 8 (RFC 5958)
    rb"|\x30\x81?.\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05"  # the same, encrypted
    rb"|\x02\x01\x00\x02[\x40-\x82]"  # RSA (RFC 8017), DSA
    rb"|\x02\x01\x01\x04[\x1c\x20\x30\x42]"  # elliptic curves (RFC 5915)
    rb"|\x02\x01\x03\x30(?:\x82..|\x81?.)\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07)",  # PKCS 12 (RFC 7292)
    re.DOTALL,
)
"""The first bytes of a private key in DER. A certificate or a public key begins otherwise."""
_GIT_TOKEN = re.compile(
    rb"^\s*(?:extraheader\s*=|(?:push)?url\s*=\s*https?://(?:[^/\s@:]*:[^/\s@]+|[^/\s@:]{20,})@)",
    re.MULTILINE | re.IGNORECASE,
)
"""A line of a git configuration with a token or password: a URL with it, or a header for a server."""
_BYTE_ORDER_MARK = re.compile(rb"\xef\xbb\xbf|\xff\xfe|\xfe\xff")
_JSON_OBJECT = re.compile(rb"\s*\{")
_TOKEN_KEYS = (b"refresh_token", b"refreshToken", b"service_account")
_MAX_NESTED = 3

_SECRET_NAMES = frozenset((
    "_netrc", ".aws", ".azure", ".boto", ".databrickscfg", ".dockercfg", ".doppler", ".git-credentials", ".gnupg", ".kaggle", ".kube",
    ".lambda_cloud", ".modal.toml", ".my.cnf", ".mylogin.cnf", ".netrc", ".npmrc", ".oci", ".password-store", ".pgpass", ".pypirc",
    ".renviron", ".runpod", ".s3cfg", ".ssh", ".vast_api_key", ".vault-token", "kaggle.json",
))  # fmt: skip
_SECRET_FILES = frozenset((
    ".histfile", ".history", ".htpasswd", ".rhistory", ".zhistory", "application_default_credentials.json", "credentials.json",
    "fish_history", "kubeconfig", "netrc", "pip.conf", "pip.ini", "rclone.conf",
))  # fmt: skip
"""Names that are secrets only as files: a folder `netrc/` is code."""
_SECRET_SHAPES = re.compile(
    r"adc(?:[-_.\d].*)?\.json|client_secret.*\.json|\..+_history|\.authinfo(?:\.gpg)?|\.?vault[-_]pass(?:word)?(?:\.txt)?|\.secrets(?:\..+)?"
)
_SECRET_BELOW = {
    ".config": ("doppler", "gcloud", "gh", "hub", "modal", "openai", "rclone", "runpod", "vastai"),
    "launch": ("lambda_key",),
    ".cargo": ("credentials", "credentials.toml"),
    ".docker": ("config.json",),
    ".huggingface": ("token", "stored_tokens"),
    "huggingface": ("token", "stored_tokens"),
    ".streamlit": ("secrets.toml",),
}
"""Names that are secrets in a folder of a given name."""
_SECRET_STARTS = (".env",)
_SECRET_ENDS = (".env", ".kubeconfig", ".ovpn", ".tfstate", ".tfstate.backup", ".tfvars", ".tfvars.json")
_KEY_STARTS = ("id_rsa", "id_ed25519", "id_ecdsa", "id_dsa")
_KEY_ENDS = (".pem", ".p12", ".pfx", ".ppk", ".kdbx", ".jks", ".key", ".keytab")
SECRET_ENDS = (*_KEY_ENDS, *_SECRET_ENDS)
_OTHERS = {".git": ExclusionReason.REPOSITORY, "launch.toml": ExclusionReason.SETTINGS}
_FOLDERS = {"__pycache__": ExclusionReason.CACHE, "wandb": ExclusionReason.TRACKER}


def of_name(name: str, folder: str, *, is_folder: bool) -> ExclusionReason | None:
    """Return why a file or folder is excluded by its name, in a folder named `folder`. None if it is not."""
    name = name.lower()  # macOS does not distinguish `.ENV` and `.env`
    if name.startswith(_KEY_STARTS) or name.endswith(_KEY_ENDS):
        return ExclusionReason.KEY_NAME
    if _is_for_credentials(name, folder) or name.startswith(_SECRET_STARTS):
        return ExclusionReason.CREDENTIALS
    if not is_folder and (
        name in _SECRET_FILES or name.endswith(_SECRET_ENDS) or _SECRET_SHAPES.fullmatch(name)
    ):
        return ExclusionReason.CREDENTIALS
    if name in _OTHERS:
        return _OTHERS[name]
    return _FOLDERS.get(name) if is_folder else None


def credentials_folder(path: str) -> str | None:
    """Return the name of the first credentials folder on an absolute path, for example `.ssh`, or None."""
    parts = path.split(os.sep)
    return next((name for above, name in pairwise(parts) if _is_for_credentials(name.lower(), above)), None)


def _is_for_credentials(name: str, folder: str) -> bool:
    return name in _SECRET_NAMES or name in _SECRET_BELOW.get(folder.lower(), ())


def secrets_among(names: Iterable[str]) -> list[str]:
    """Return the names that are credentials or keys, sorted."""
    return sorted(
        name for name in names if (why := of_name(name, "", is_folder=False)) is not None and why.is_secret
    )


def sample(file: IO[bytes], size: int) -> bytes:
    """Return the searched part of a file of `size` bytes: all of it, or SAMPLE bytes at either end.

    Raises OSError.
    """
    file.seek(0)
    if size <= 2 * SAMPLE:
        return file.read(2 * SAMPLE)
    head = file.read(SAMPLE)
    file.seek(-SAMPLE, os.SEEK_END)
    return head + b"\n" + file.read(SAMPLE)


def holds_private_key(content: bytes) -> bool:
    """Return whether the sample of a file is a private key, a cloud service's token in JSON, or a git configuration with a token.

    A key is in PEM, possibly after other lines, in the formats of PuTTY or age, or in DER. Text may be UTF-8
    or UTF-16.
    """
    if _DER.match(content) is not None:
        return True
    mark = _BYTE_ORDER_MARK.match(content)
    text = content[mark.end() :] if mark is not None else content
    if b"\0" in text[:2]:
        text = text.replace(b"\0", b"")  # UTF-16
    # A substring search first is ten times as fast as the expressions alone.
    if b" PRIVATE KEY" in text and any(
        (_BEGINS_WITH_KEY.match(text), _HOLDS_KEY.search(text), _JSON_HOLDS_KEY.match(text))
    ):
        return True
    if b"PuTTY-User-Key-File-" in text and _PUTTY.search(text) is not None:
        return True
    if b"AGE-SECRET-KEY-" in text and _AGE.search(text) is not None:
        return True
    if (b'[remote "' in text or b"[http" in text) and _GIT_TOKEN.search(text) is not None:
        return True
    return (
        _JSON_OBJECT.match(text) is not None
        and any(key in text for key in _TOKEN_KEYS)
        and _is_token_file(text)
    )


def _is_token_file(text: bytes) -> bool:
    """Whether a text is one JSON object with a token. A data set with one object per line is not."""
    try:
        value = untrusted_json.decode(text)
    except (ValueError, RecursionError):
        return False
    return _has_token(value, _MAX_NESTED)


def _has_token(value: object, depth: int) -> bool:
    if not isinstance(value, dict) or not depth:
        return False
    if value.get("type") == "service_account" and value.get("private_key"):
        return True
    tokens = (value.get("refresh_token"), value.get("refreshToken"))
    return any(token and isinstance(token, str) for token in tokens) or any(
        _has_token(inner, depth - 1) for inner in value.values()
    )
