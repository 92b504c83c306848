"""The settings of a Kaggle account: the keys of a `[hosts.NAME]` table with `kind = "kaggle"`."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from launcher.values.base import Written
from launcher.values.credential import credential_in

API = "https://api.kaggle.com/v1"
SESSION_HOURS = 8.5
"""Kaggle's documents say 12 hours, an editor message of 2026 says 9: this is below both."""
MOST_SESSION_HOURS = 12.0
_OWN_MACHINE = ("127.0.0.1", "localhost", "::1")


def _api(written: str) -> str:
    if credential_in(written):
        raise PydanticCustomError("credential", "holds a credential: set KAGGLE_API_TOKEN instead")
    parts = urlsplit(written)
    if parts.scheme == "http" and parts.hostname not in _OWN_MACHINE:
        raise ValueError("credentials would be sent in the clear: expected https://…")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"expected a URL such as {API}")
    return written.rstrip("/")


def _account(written: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", written):
        raise ValueError("expected the name in the address of your page: www.kaggle.com/NAME")
    return written


def _accelerator(written: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{1,39}", written):
        raise ValueError('expected Kaggle\'s name of an accelerator, such as NvidiaTeslaT4, or "None"')
    return written


def _dataset(written: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*", written):
        raise ValueError("expected OWNER/NAME, the end of the address of its page")
    return written


def _model(written: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*(/[A-Za-z0-9][\w.-]*){3,4}", written):
        raise ValueError("expected OWNER/MODEL/FRAMEWORK/VARIATION, and /VERSION if you want")
    return written


class KaggleSettings(Written):
    """The settings of a host of kind `kaggle`."""

    account: Annotated[str, AfterValidator(_account)] | None = None
    """The account's name, as in the address of its page; by default that of the credentials."""
    api: Annotated[str, AfterValidator(_api)] = API
    """The address of the service, which gets your credentials. A project's `launch.toml` may name only
    this computer.
    """
    internet: bool = True
    """Whether sessions can install packages and download models."""
    session_hours: Annotated[float, Field(gt=0, le=MOST_SESSION_HOURS)] = SESSION_HOURS
    """The limit of one session; a longer run has several."""
    accelerator: Annotated[str, AfterValidator(_accelerator)] | None = None
    """Kaggle's name for the machine; by default the profile's, else `NvidiaTeslaT4`. The text `"None"` is a
    session without a card.
    """
    keep_kernels: bool = False
    """Do not delete a session's kernel after its outputs are downloaded."""
    datasets: tuple[Annotated[str, AfterValidator(_dataset)], ...] = ()
    """Kaggle datasets, as `OWNER/NAME`, that each session sees below `/kaggle/input`."""
    models: tuple[Annotated[str, AfterValidator(_model)], ...] = ()
    """Kaggle models, as `OWNER/MODEL/FRAMEWORK/VARIATION`, for each session."""

    @property
    def is_kaggles_own(self) -> bool:
        """Whether a user's credentials go to Kaggle itself, or stay on this machine."""
        return self.api == API or urlsplit(self.api).hostname in _OWN_MACHINE
