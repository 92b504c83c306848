"""The table of a Kaggle account."""

from __future__ import annotations

from typing import ClassVar, Literal

from launcher.values.host import Host
from launcher.values.host_kind import HostKind
from launcher.values.kaggle_settings import KaggleSettings

_NO_MACHINE = "there is no machine to log in to: Kaggle runs the job, and launcher asks its service"
_ENVIRONMENT = "the job has the Python of Kaggle's image; what it lacks is installed from `requirements`"
_CONTAINER = "a kernel is Kaggle's own container, and starts no other"


class _Table(KaggleSettings):
    """A table as it is written: the settings stand beside what all kinds of host have."""

    kind: Literal["kaggle"]
    profile: str | None = None
    runtime: Literal["auto", "kaggle"] = "auto"


class KaggleKind(HostKind):
    """An account."""

    title = "an account of Kaggle's"
    key = "kaggle"
    settings = KaggleSettings
    table = _Table
    foreign: ClassVar = {
        "address": _NO_MACHINE,
        "user": _NO_MACHINE,
        "port": _NO_MACHINE,
        "identity_file": _NO_MACHINE,
        "known_hosts": _NO_MACHINE,
        "root": "what the runs of an account send home is kept in launcher's own folder on this machine",
        "python": "the job has the Python of Kaggle's image",
        "environment": _ENVIRONMENT,
        "env": _ENVIRONMENT,
        "engine": _CONTAINER,
        "sudo": _CONTAINER,
        "build": "the image is Kaggle's own; what a job lacks is installed from its `requirements`",
        "variables": "a kernel inherits no variables from here; use -e NAME=VALUE",
        "hold": _NO_MACHINE,
    }
    free = ("accelerator", "session_hours", "internet", "keep_kernels")
    has_runtimes = False
    is_reached = False
    implicit = Host(name="kaggle", kind="kaggle", kaggle=KaggleSettings())

    def project_objection(self, host: Host) -> tuple[str, str] | None:
        """Return the key `api` if a person's credentials would go elsewhere than to Kaggle."""
        if host.kaggle is None or host.kaggle.is_kaggles_own:
            return None
        return "api", "your credentials for Kaggle would go there"


KIND = KaggleKind()
