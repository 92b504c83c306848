"""The configuration table of a Kaggle account."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from launcher.backends.kaggle.kaggle_settings import KaggleSettings
from launcher.values.host import Host
from launcher.values.host_kind import HostKind

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
