"""The configuration table of a Kaggle account: a `[hosts.NAME]` table with `kind = "kaggle"`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from launcher.values.base import StrictModel
from launcher.values.credential import credential_in
from launcher.values.host import Host, HostKind

API = "https://api.kaggle.com/v1"
SESSION_HOURS = 8.5
"""Kaggle's documents say 12 hours, an editor message of 2026 says 9: this is below both."""
MAX_SESSION_HOURS = 12.0
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


class KaggleSettings(StrictModel):
    """The settings of a host of kind `kaggle`."""

    account: Annotated[str, AfterValidator(_account)] | None = None
    """The account's name, as in the address of its page; by default that of the credentials."""
    api: Annotated[str, AfterValidator(_api)] = API
    """The address of the service, which gets your credentials. A project's `launch.toml` may name only
    this computer.
    """
    internet: bool = True
    """Whether sessions can install packages and download models."""
    session_hours: Annotated[float, Field(gt=0, le=MAX_SESSION_HOURS)] = SESSION_HOURS
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
        """Whether `api` is an address of Kaggle or of this machine, so that no third party gets the credentials."""
        return self.api == API or urlsplit(self.api).hostname in _OWN_MACHINE


_NO_MACHINE = "no machine accepts a login: Kaggle runs the job, and launcher uses its API"
_ENVIRONMENT = "the job has the Python of Kaggle's image; missing packages are installed from `requirements`"
_CONTAINER = "a kernel is Kaggle's own container, and starts no other"


class _Table(KaggleSettings):
    """A table as written in the file: the settings beside the keys common to all kinds of host."""

    kind: Literal["kaggle"]
    profile: str | None = None
    runtime: Literal["auto", "kaggle"] = "auto"


class KaggleHost(Host):
    """A Kaggle account."""

    why_own_runtime = "a kernel is Kaggle's own container"
    has_login = False

    kind: Literal["kaggle"] = "kaggle"
    kaggle: KaggleSettings

    @property
    def way(self) -> tuple[object, ...]:
        """The values that a connection to the host depends on, including the account's settings."""
        return (*super().way, self.kaggle)

    @model_validator(mode="after")
    def _is_no_machine(self) -> Self:
        if self.address is not None or self.environment is not None:
            raise ValueError("a host of kind 'kaggle' has no address and no environment")
        return self


def settings_of(host: Host) -> KaggleSettings:
    """Return the settings of an account; the default settings for any other host."""
    return host.kaggle if isinstance(host, KaggleHost) else KaggleSettings()


KAGGLE = KaggleHost(name="kaggle", kaggle=KaggleSettings())
"""The account of the user's credentials. It needs no table in a file."""


class KaggleKind(HostKind):
    """The kind of host for Kaggle accounts."""

    title = "a Kaggle account"
    host = KaggleHost
    key = "kaggle"
    settings = KaggleSettings
    table = _Table
    foreign: ClassVar = {
        "address": _NO_MACHINE,
        "user": _NO_MACHINE,
        "port": _NO_MACHINE,
        "identity_file": _NO_MACHINE,
        "known_hosts": _NO_MACHINE,
        "root": "downloads of an account's runs are kept in launcher's own folder on this machine",
        "python": "the job has the Python of Kaggle's image",
        "environment": _ENVIRONMENT,
        "env": _ENVIRONMENT,
        "engine": _CONTAINER,
        "sudo": _CONTAINER,
        "build": "the image is Kaggle's own; missing packages are installed from the job's `requirements`",
        "variables": "a kernel inherits no variables from here; use -e NAME=VALUE",
        "hold": _NO_MACHINE,
    }
    free = ("accelerator", "session_hours", "internet", "keep_kernels")
    has_runtimes = False
    implicit = KAGGLE

    def project_objection(self, host: Host) -> tuple[str, str] | None:
        """Return the key `api` if it would send a user's credentials elsewhere than to Kaggle."""
        if settings_of(host).is_kaggles_own:
            return None
        return "api", "your credentials for Kaggle would go there"


KIND = KaggleKind()
