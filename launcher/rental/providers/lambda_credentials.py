"""A user's API key for Lambda Cloud.

It opens the whole account, so no repr, error, record or argv contains it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from launcher.errors import BadFileError
from launcher.rental.providers.lambda_settings import LambdaSettings

VARIABLE = LambdaSettings.variable
KEYS_PAGE = "https://cloud.lambda.ai/api-keys"
_LINE = re.compile(r"""\s*api_key\s*=\s*(["']?)(.*?)\1\s*""")


class LambdaKey:
    """A key and its origin."""

    __slots__ = ("_secret", "origin")

    def __init__(self, secret: str, origin: str) -> None:
        """Use this key. Raises BadFileError if it is not valid in an HTTP header."""
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise BadFileError(
                f"lambda: the content of {origin} is not a key: it has characters that a key never has"
            )
        self._secret, self.origin = secret, origin

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self._secret}"

    def redact(self, text: str) -> str:
        """Return a text without the key, in case the service repeats it."""
        return text.replace(self._secret, "***")

    def is_in(self, text: str) -> bool:
        """Whether a text contains the key."""
        return self._secret in text

    def fingerprint(self, base: str) -> str:
        """Return eight hex digits that identify this key at a service, which never returns the account's name."""
        return hashlib.sha256(f"launcher\0{base}\0{self._secret}".encode()).hexdigest()[:8]

    def __repr__(self) -> str:
        return f"LambdaKey({self.origin})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled")


def find_key(variables: Mapping[str, str], home: Path) -> LambdaKey | None:
    """Return this user's key: from the variable, else from the first existing file of two; None if neither exists.

    The first file is SkyPilot's, with a line `api_key = …`; the second is launcher's, and may hold the bare
    key. Raises BadFileError for a file that others can read, or that has no key.
    """
    if value := variables.get(VARIABLE, "").strip():
        return LambdaKey(value, VARIABLE)
    for path in key_files(variables, home):
        text = _private_text(path)
        if text is not None:
            return LambdaKey(_key_in(text, path), str(path))
    return None


def key_files(variables: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    """Return the files that may hold the key, in the order they are read."""
    settings = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    return home / ".lambda_cloud" / "lambda_keys", settings / "launch" / "lambda_key"


def _key_in(text: str, path: Path) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in lines:
        if (found := _LINE.fullmatch(line)) and found[2]:
            return found[2]
    if len(lines) == 1 and "=" not in lines[0]:
        return lines[0]
    raise BadFileError(f"lambda: {path} has no line   api_key = …\n  make a key at {KEYS_PAGE}")


def _private_text(path: Path) -> str | None:
    """Return the text of a file that only its owner can read, or None if it is missing."""
    try:
        if path.exists() and not path.is_file():
            raise BadFileError(f"lambda: {path} is not a regular file")  # reading a pipe could block
        with path.open() as file:
            about = os.fstat(file.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise BadFileError(
                    f"lambda: {path} can be read by others, and its key opens the whole account\n  chmod 600 {path}"
                )
            return file.read(65_536)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadFileError(f"lambda: {path} cannot be read: {why}") from None
