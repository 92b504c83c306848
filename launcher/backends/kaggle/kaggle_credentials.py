"""Find a user's credentials for Kaggle, in Kaggle's own order. Their values are in no repr, error or record.

Order and files are those of kaggle 2.2.4, read in its source: an access token, a legacy key, OAuth.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from launcher.agent.record import strict_json
from launcher.base.text import printable
from launcher.errors import BadFileError

_ACCESS = "KGAT_"
"""The start of an access token."""
MARGIN = timedelta(minutes=5)
"""An OAuth token that expires within this time is renewed first."""


class KaggleLogin:
    """One way to log in: `kind` is `token`, `key` or `oauth`; `origin` is the place where it was found.

    `user` is empty if only the service knows it. An `oauth` login has a refresh token if `needs_renewal`, or
    else an access token that expires at `until`.
    """

    __slots__ = ("_secret", "kind", "needs_renewal", "origin", "until", "user")

    def __init__(
        self,
        kind: str,
        secret: str,
        origin: str,
        user: str = "",
        *,
        needs_renewal: bool = False,
        until: datetime | None = None,
    ) -> None:
        """Raises BadFileError if the secret is not valid in a header, or the user not in a path."""
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise BadFileError(
                f"kaggle: the content of {origin} is not a token or key: it has characters that they never have"
            )
        if user and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", user):
            raise BadFileError(f"kaggle: {origin}: '{printable(user[:64])}' is not an account name")
        self.kind, self.origin, self.user, self.needs_renewal = kind, origin, user, needs_renewal
        self._secret, self.until = secret, until

    @property
    def is_out_of_date(self) -> bool:
        """Whether the login expires soon, so that another one is needed."""
        return self.until is not None and datetime.now(UTC) + MARGIN > self.until

    def of(self, user: str) -> KaggleLogin:
        """Return the login with the user name from the service."""
        return KaggleLogin(self.kind, self._secret, self.origin, user)

    def header(self) -> str:
        """Return the value of the Authorization header."""
        if self.kind == "key":
            return "Basic " + base64.b64encode(f"{self.user}:{self._secret}".encode()).decode()
        return f"Bearer {self._secret}"

    def secret(self) -> str:
        """Return the secret.

        Two calls have it in their bodies: asking for a token's owner, and renewing a token.
        """
        return self._secret

    def redact(self, text: str) -> str:
        """Return a text without the secret, in case the service repeats it."""
        return text.replace(self.header().partition(" ")[2], "***").replace(self._secret, "***")

    def __repr__(self) -> str:
        return f"KaggleLogin({self.kind} of {self.user or 'an unknown user'}, {self.origin})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled")


def logins(variables: Mapping[str, str], home: Path) -> Iterator[KaggleLogin]:
    """Yield the user's logins in order. Raises BadFileError."""
    yield from _tokens(variables, home)
    yield from _keys(variables, home)
    yield from _oauth(home)


def has_credentials() -> bool:
    """Whether the user has credentials for Kaggle. Only the service knows whether they are valid."""
    return next(logins(os.environ, Path.home()), None) is not None


def _tokens(variables: Mapping[str, str], home: Path) -> Iterator[KaggleLogin]:
    """Yield the first access token: from KAGGLE_API_TOKEN (a token or a file's path), else from a file in the home."""
    value = variables.get("KAGGLE_API_TOKEN", "").strip()
    if value:
        file = _file(value)
        token = value if file is None else _text(file)
        if token:
            yield KaggleLogin("token", token, "KAGGLE_API_TOKEN" if file is None else str(file))
        return
    for name in ("access_token", "access_token.txt"):
        path = home / ".kaggle" / name
        if token := _text(path):
            yield KaggleLogin("token", token, str(path))
            return


def _keys(variables: Mapping[str, str], home: Path) -> Iterator[KaggleLogin]:
    """Yield the legacy key.

    A variable takes precedence over the same value in the file, as in Kaggle's own client.
    """
    user, key = variables.get("KAGGLE_USERNAME", ""), variables.get("KAGGLE_KEY", "")
    origin = "KAGGLE_USERNAME and KAGGLE_KEY"
    if not (user and key):
        path = _settings_folder(variables, home) / "kaggle.json"
        data = _json(path)
        user, key, origin = user or _word(data, "username"), key or _word(data, "key"), str(path)
    if user and key:
        # An access token works only as one, also where an older key is expected.
        yield KaggleLogin("token" if key.startswith(_ACCESS) else "key", key, origin, user)


def _oauth(home: Path) -> Iterator[KaggleLogin]:
    """Yield the login of `kaggle auth login`: its access token, or the refresh token if that has expired."""
    path = home / ".kaggle" / "credentials.json"
    data = _json(path)
    refresh, access, user = (_word(data, key) for key in ("refresh_token", "access_token", "username"))
    if not refresh:
        return
    until = _expiry(_word(data, "access_token_expiration"))
    if access and until > datetime.now(UTC) + MARGIN:
        yield KaggleLogin("oauth", access, str(path), user, until=until)
    else:
        yield KaggleLogin("oauth", refresh, str(path), user, needs_renewal=True)


def _settings_folder(variables: Mapping[str, str], home: Path) -> Path:
    if named := variables.get("KAGGLE_CONFIG_DIR"):
        return Path(named)
    usual = home / ".kaggle"
    if sys.platform.startswith("linux") and not usual.exists():
        return Path(variables.get("XDG_CONFIG_HOME") or home / ".config") / "kaggle"
    return usual


def _file(value: str) -> Path | None:
    """Return the file that a value names; None if it names none. A token may be longer than a file name."""
    try:
        return Path(value) if os.path.isfile(value) else None
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadFileError(f"kaggle: {path} cannot be read: {why}") from None


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        data = strict_json.decode(text or "{}")
    except ValueError:
        data = None  # the error would quote the text
    if not isinstance(data, dict):
        raise BadFileError(
            f"kaggle: {path} is not JSON with a user and a key\n  download it again from kaggle.com/settings"
        )
    return data


def _word(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value.strip() if isinstance(value, str) else ""


def _expiry(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
