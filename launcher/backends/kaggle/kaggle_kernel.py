"""Kaggle's kernels: the data of a push, and the service's answers.

Names and defaults of fields are those of kagglesdk 0.1.38. Nothing here was compared with the real service.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from launcher.values.base import Record, StrictModel

NO_ACCELERATOR = "None"
"""Kaggle's name of a machine without a card."""
SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
SLUG_CHARACTERS = range(5, 51)
"""The CLI wants titles of 5 characters or more; more than 50 gave HTTP 500 in 2019 (kaggle-cli#179)."""
SOURCE_BYTES = 900_000
"""The largest script. No official figure was found; other launchers stay below this one."""
Count = Annotated[int, Field(ge=0, le=2**53)]


class KaggleReason(StrEnum):
    """Why a call to Kaggle failed, or its answer is invalid: the `reason` of a ServiceError."""

    BAD_REQUEST = "bad-request"
    BROKEN_OFF = "broken-off"
    CERTIFICATE = "certificate"
    CONFLICT = "conflict"
    FORBIDDEN = "forbidden"
    INVALID_SOURCES = "invalid-sources"
    LINK_EXPIRED = "link-expired"
    LOG_REWRITTEN = "log-rewritten"
    MALFORMED = "malformed"
    NO_CREDENTIALS = "no-credentials"
    NO_NETWORK = "no-network"
    NO_PHONE = "no-phone"
    NOT_FOUND = "not-found"
    QUOTA = "quota"
    RATE_LIMIT = "rate-limit"
    REFUSED = "refused"
    SERVER_ERROR = "server-error"
    SESSION_LIMIT = "session-limit"
    SILENT = "silent"
    TOO_LARGE = "too-large"
    UNAUTHORIZED = "unauthorized"


class KernelRef(NamedTuple):
    """A kernel's owner and slug."""

    owner: str
    slug: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.slug}"


class NewKernel(StrictModel):
    """A script to push. Its title is its slug: with another title the kernel would get another slug.

    `machine` is Kaggle's name of the accelerator, e.g. `NvidiaTeslaT4`, which is two cards; NO_ACCELERATOR is
    not sent. `timeout_s` ends the session. Sources are refs: `owner/slug`.
    """

    ref: KernelRef
    source: str = Field(repr=False)
    machine: str
    timeout_s: Annotated[int, Field(gt=0)]
    has_internet: bool = False
    datasets: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @field_validator("ref")
    @classmethod
    def _is_slug(cls, ref: KernelRef) -> KernelRef:
        if not SLUG.fullmatch(ref.slug) or len(ref.slug) not in SLUG_CHARACTERS:
            raise ValueError("a slug has 5 to 50 of a-z, 0-9 and single dashes")
        return ref

    @field_validator("source")
    @classmethod
    def _is_small(cls, source: str) -> str:
        if (size := len(source.encode())) > SOURCE_BYTES:
            raise ValueError(f"the script has {size:,} bytes; at most {SOURCE_BYTES:,} may be pushed")
        return source

    @property
    def body(self) -> dict[str, Any]:
        """The body of SaveKernel, as the official CLI sends it: empty lists are omitted."""
        sources = {
            "datasetDataSources": list(self.datasets),
            "kernelDataSources": list(self.kernels),
            "modelDataSources": list(self.models),
        }
        return {
            "slug": str(self.ref),
            "newTitle": self.ref.slug,
            "text": self.source,
            "language": "python",
            "kernelType": "script",
            "isPrivate": True,
            "enableGpu": self.machine.startswith("Nvidia"),
            "enableTpu": self.machine.startswith("Tpu"),
            "enableInternet": self.has_internet,
            "sessionTimeoutSeconds": self.timeout_s,
            # Users report that "None" is refused, and that a session without a card has no such field.
            **({} if self.machine == NO_ACCELERATOR else {"machineShape": self.machine}),
            **{key: refs for key, refs in sources.items() if refs},
        }


class _Answer(Record):
    """An answer of the service. Its names are in camelCase, and it omits a field with the default value."""

    model_config = ConfigDict(alias_generator=to_camel)


class Pushed(_Answer):
    """An accepted push. The session runs without the sources in the `invalid` lists."""

    ref: str = ""
    url: str = ""
    version_number: Count | None = None
    error: str | None = None
    invalid_dataset_sources: list[str] = []
    invalid_competition_sources: list[str] = []
    invalid_kernel_sources: list[str] = []
    invalid_model_sources: list[str] = []

    @property
    def landed(self) -> KernelRef | None:
        """The kernel's owner and slug from the answer; None if it has none."""
        parts = self.ref.strip("/").split("/")[-2:]
        return KernelRef(*parts) if len(parts) == 2 else None

    @property
    def dropped(self) -> tuple[str, ...]:
        """The sources that the session lacks. If there are any, the reason is KaggleReason.INVALID_SOURCES."""
        return (
            *self.invalid_dataset_sources,
            *self.invalid_competition_sources,
            *self.invalid_kernel_sources,
            *self.invalid_model_sources,
        )


class ListedKernel(_Answer):
    """A kernel in a list: its `ref` is `owner/slug`, `last_run_time` the service's text of its last push."""

    ref: str = ""
    last_run_time: str | None = None

    @property
    def where(self) -> KernelRef | None:
        """Its owner and slug; None if they cannot be parsed."""
        owner, _, slug = self.ref.partition("/")
        return KernelRef(owner, slug) if owner and SLUG.fullmatch(slug) else None

    @property
    def ran_at(self) -> float | None:
        """The time of its last push in seconds since 1970; None if it cannot be read."""
        moment = _moment(self.last_run_time)
        return None if moment is None else moment.timestamp()


class KernelPage(_Answer):
    """One page of an account's kernels."""

    kernels: list[ListedKernel] = []


class KernelAbout(_Answer):
    """The metadata of a kernel from GetKernel. `machine_shape` is the accelerator, sources are refs."""

    title: str = ""
    machine_shape: str | None = None
    kernel_data_sources: list[str] = []


class KernelSource(_Answer):
    """The script of a kernel's latest version."""

    source: str | None = Field(default=None, repr=False)


class Kernel(_Answer):
    """An existing kernel."""

    metadata: KernelAbout
    blob: KernelSource = KernelSource()


class SessionStatus(_Answer):
    """The status of a kernel's latest session. An unknown status does not count as success."""

    status: str = "QUEUED"  # the service omits a default
    failure_message: str | None = None

    @field_validator("status")
    @classmethod
    def _in_capitals(cls, status: str) -> str:
        """Kaggle's own client accepts any case, and a prefix: `KernelWorkerStatus.COMPLETE`."""
        return status.upper().rpartition(".")[2].removeprefix("KERNEL_WORKER_STATUS_")


class OutputFile(_Answer):
    """An output file of a session. Its link is a credential while it is valid, so it is in no `repr`."""

    file_name: str
    url: str = Field(repr=False)

    @field_validator("file_name")
    @classmethod
    def _is_below(cls, name: str) -> str:
        if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
            raise ValueError("not a path below the outputs")
        return name


class OutputPage(_Answer):
    """One page of a session's files, available after the session."""

    files: list[OutputFile] = []
    next_page_token: str | None = None


class Hours(_Answer):
    """The week's time on one kind of accelerator. The service writes durations as `3600s`."""

    time_used: str = "0s"
    time_reserved: str = "0s"
    total_time_allowed: str = "0s"

    @property
    def used_s(self) -> float:
        """The used time in seconds."""
        return _seconds(self.time_used)

    @property
    def reserved_s(self) -> float:
        """The time reserved by running sessions, in seconds."""
        return _seconds(self.time_reserved)

    @property
    def title(self) -> str:
        """The hours, e.g. `3.5 h used, 8.5 h reserved, 18 h left`."""
        figures = {"used": self.used_s, "reserved": self.reserved_s, "left": self.left_s}
        return ", ".join(f"{round(seconds / 3600, 1):g} h {what}" for what, seconds in figures.items())

    @property
    def left_s(self) -> float:
        """The remaining time in seconds."""
        return max(0.0, _seconds(self.total_time_allowed) - self.used_s - self.reserved_s)


class Quota(_Answer):
    """An account's hours of the week, and the time of their refill."""

    quota_refresh_time: str | None = None
    gpu_quota: Hours | None = None

    @property
    def title(self) -> str:
        """The hours on GPUs, e.g. `GPU 3.5 h used, 8.5 h reserved, 18 h left, refill 28 Nov 00:00 UTC`."""
        if self.gpu_quota is None:
            return "Kaggle reports no GPU hours"
        words = f"GPU {self.gpu_quota.title}"
        moment = self.refill
        return words if moment is None else f"{words}, refill {moment:%d %b %H:%M} UTC"

    @property
    def refill(self) -> datetime | None:
        """The time of the refill."""
        return _moment(self.quota_refresh_time)


class DatasetAnswer(_Answer):
    """The service's answer to a new dataset, or to the deletion of one."""

    status: str | None = None
    error: str | None = None


class DeletedKernel(_Answer):
    """The service's answer to the deletion of a kernel."""

    error_message: str | None = None


class DatasetStatus(_Answer):
    """The state of a dataset. In the state READY, a session can mount it."""

    status: str = "NOT_YET_PERSISTED"

    @property
    def is_ready(self) -> bool:
        """Whether a session can mount the dataset."""
        return self.status == "READY"


class BlobUpload(_Answer):
    """Where to send the bytes of a dataset's file. The link is a credential while it is valid."""

    token: str = Field(repr=False)
    create_url: str = Field(repr=False)


class TokenOwner(_Answer):
    """The owner of an access token, if it is valid."""

    active: bool = False
    username: str = ""


class FreshToken(_Answer):
    """An access token made from a refresh token. `expires_in` is in seconds."""

    token: str = Field(repr=False)
    user_name: str = ""
    expires_in: Count = 0


def _seconds(duration: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", duration)
    return float(found[1]) if found else 0.0


def _moment(text: str | None) -> datetime | None:
    """Parse a time of the service, which is in UTC if it names no zone; None if it cannot be read."""
    try:
        moment = datetime.fromisoformat(text or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
