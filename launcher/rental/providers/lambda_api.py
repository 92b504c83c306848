"""Lambda Cloud's API: what is sent, what its service answers, and its error codes with our reasons.

Names and limits are those of its OpenAPI description 1.10.0. Nothing here has been compared with the real service.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator

from launcher.values.base import Record, Written

NAME_CHARACTERS = 64
TAG_KEY = re.compile(r"[a-z][a-z0-9:-]+")
TAG_KEY_CHARACTERS, TAG_VALUE_CHARACTERS = 55, 128
USER_DATA_BYTES = 1_000_000
HOSTNAME = r"^[a-z0-9][0-9a-z-]{0,62}$"
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
"""An id, or a name of the service's own, which is shown, typed in commands and sent back: no other characters are read."""
Address = Annotated[str, Field(pattern=r"^[0-9A-Fa-f.:]{2,45}$")]
MostCents = Annotated[int, Field(gt=0, le=100_000_000)]
MostCards = Annotated[int, Field(ge=0, le=4096)]
Size = Annotated[int, Field(ge=0, le=1_000_000_000)]
PROVIDER = "provider/"
"""The prefix of a code that comes from a service behind Lambda's own: its outages, quotas and empty racks."""


class LambdaReason(StrEnum):
    """Why a call to Lambda failed, or what is wrong with its answer. It is the `reason` of a ServiceError."""

    ACCOUNT_INACTIVE = "account-inactive"
    BAD_REQUEST = "bad-request"
    BROKEN_OFF = "broken-off"
    CERTIFICATE = "certificate"
    CONFLICT = "conflict"
    DUPLICATE = "duplicate"
    FORBIDDEN = "forbidden"
    IN_USE = "in-use"
    INVALID_ADDRESS = "invalid-address"
    INVALID_PARAMETERS = "invalid-parameters"
    MALFORMED = "malformed"
    NO_CAPACITY = "no-capacity"
    NO_CREDENTIALS = "no-credentials"
    NO_NETWORK = "no-network"
    NOT_FOUND = "not-found"
    QUOTA = "quota"
    RATE_LIMIT = "rate-limit"
    SERVER_ERROR = "server-error"
    SILENT = "silent"
    TOO_LARGE = "too-large"
    UNAUTHORIZED = "unauthorized"
    UPSTREAM = "upstream"
    WRONG_REGION = "wrong-region"


class LambdaCode(StrEnum):
    """The codes that Lambda documents. Its messages may change, so only these are compared."""

    ACCOUNT_INACTIVE = "global/account-inactive"
    CONFLICT = "global/conflict"
    DUPLICATE = "global/duplicate"
    FILE_SYSTEM_IN_USE = "filesystems/filesystem-in-use"
    FILE_SYSTEM_IN_WRONG_REGION = "instance-operations/launch/file-system-in-wrong-region"
    FIREWALL_IN_USE = "firewall-rulesets/firewall-ruleset-in-use"
    FORBIDDEN = "global/forbidden"
    INSUFFICIENT_CAPACITY = "instance-operations/launch/insufficient-capacity"
    INTERNAL_ERROR = "global/internal-error"
    INVALID_ADDRESS = "global/invalid-address"
    INVALID_API_KEY = "global/invalid-api-key"
    INVALID_PARAMETERS = "global/invalid-parameters"
    NOT_FOUND = "global/not-found"
    OBJECT_DOES_NOT_EXIST = "global/object-does-not-exist"
    QUOTA_EXCEEDED = "global/quota-exceeded"

    @property
    def meaning(self) -> CodeMeaning:
        """What it means to us."""
        return _MEANINGS[self]


class CodeMeaning(NamedTuple):
    """The reason that a code stands for, and what the user can do about it; empty if nothing."""

    reason: LambdaReason
    mend: str = ""


PAGES = "https://cloud.lambda.ai"
_MEANINGS = {
    LambdaCode.ACCOUNT_INACTIVE: CodeMeaning(
        LambdaReason.ACCOUNT_INACTIVE, f"verify the e-mail address and add a payment method at {PAGES}"
    ),
    LambdaCode.CONFLICT: CodeMeaning(LambdaReason.CONFLICT, "wait until what is under way there is done"),
    LambdaCode.DUPLICATE: CodeMeaning(
        LambdaReason.DUPLICATE, "the account has one of that name: use another"
    ),
    LambdaCode.FILE_SYSTEM_IN_USE: CodeMeaning(LambdaReason.IN_USE, "end the instances that have it mounted"),
    LambdaCode.FILE_SYSTEM_IN_WRONG_REGION: CodeMeaning(
        LambdaReason.WRONG_REGION, "set `region` to the file system's own, or leave `file_system` out"
    ),
    LambdaCode.FIREWALL_IN_USE: CodeMeaning(LambdaReason.IN_USE, "end the instances that use it"),
    LambdaCode.FORBIDDEN: CodeMeaning(LambdaReason.FORBIDDEN, "the account's owner may allow it"),
    LambdaCode.INSUFFICIENT_CAPACITY: CodeMeaning(
        LambdaReason.NO_CAPACITY, "name more types or regions, or try again later"
    ),
    LambdaCode.INTERNAL_ERROR: CodeMeaning(LambdaReason.SERVER_ERROR, "wait, then try again"),
    LambdaCode.INVALID_ADDRESS: CodeMeaning(
        LambdaReason.INVALID_ADDRESS, f"correct the billing address at {PAGES}"
    ),
    LambdaCode.INVALID_API_KEY: CodeMeaning(
        LambdaReason.UNAUTHORIZED, f"make a new key at {PAGES}/api-keys, and set LAMBDA_API_KEY"
    ),
    LambdaCode.INVALID_PARAMETERS: CodeMeaning(LambdaReason.INVALID_PARAMETERS),
    LambdaCode.NOT_FOUND: CodeMeaning(LambdaReason.NOT_FOUND),
    LambdaCode.OBJECT_DOES_NOT_EXIST: CodeMeaning(LambdaReason.NOT_FOUND),
    LambdaCode.QUOTA_EXCEEDED: CodeMeaning(
        LambdaReason.QUOTA, "end an instance, or ask Lambda's support for more"
    ),
}


def meaning_of(code: str) -> CodeMeaning | None:
    """Return what a code means; None if it is not documented."""
    if code.startswith(PROVIDER):
        return CodeMeaning(LambdaReason.UPSTREAM, "wait, then try again")
    return next((known.meaning for known in LambdaCode if known == code), None)


class NewInstance(Written):
    """An instance to launch. `user_data` is cloud-init's; it may hold a private key, so it is in no `repr`.

    `image` is a family's name; None means Lambda's latest default. `file_systems` are names, mounted where each says.
    """

    region: Annotated[str, Field(min_length=1)]
    type: Annotated[str, Field(min_length=1)]
    ssh_key: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS)]
    name: Annotated[str, Field(max_length=NAME_CHARACTERS)]
    hostname: Annotated[str, Field(pattern=HOSTNAME)] | None = None
    image: str | None = None
    file_systems: tuple[str, ...] = ()
    firewalls: tuple[str, ...] = ()
    user_data: str = Field(default="", repr=False)
    tags: dict[str, str] = {}

    @field_validator("user_data")
    @classmethod
    def _is_small(cls, text: str) -> str:
        if (size := len(text.encode())) > USER_DATA_BYTES:
            raise ValueError(f"user_data has {size:,} bytes; at most {USER_DATA_BYTES:,} are accepted")
        return text

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for key, value in tags.items():
            if not TAG_KEY.fullmatch(key) or len(key) > TAG_KEY_CHARACTERS:
                raise ValueError(f"'{key}' is no key of a tag: a-z, then a-z, 0-9, colons and dashes")
            if len(value) > TAG_VALUE_CHARACTERS:
                raise ValueError(f"the tag {key} has more than {TAG_VALUE_CHARACTERS} characters")
        return tags

    @property
    def body(self) -> dict[str, Any]:
        """The body of the call. A `quantity` is not part of it: the service refuses more than one."""
        optional = {
            "hostname": self.hostname,
            "image": {"family": self.image} if self.image else None,
            "file_system_names": list(self.file_systems),
            "firewall_rulesets": [{"id": name} for name in self.firewalls],
            "user_data": self.user_data,
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
        }
        return {
            "region_name": self.region,
            "instance_type_name": self.type,
            "ssh_key_names": [self.ssh_key],
            "name": self.name,
            **{key: value for key, value in optional.items() if value},
        }


class Region(Record):
    """A place where Lambda has machines."""

    name: Word
    description: str = ""


class Specs(Record):
    """The size of an instance type."""

    gpus: MostCards
    vcpus: Size = 0
    memory_gib: Size = 0
    storage_gib: Size = 0


class InstanceType(Record):
    """A type of instance. `gpu_description` is the card with its memory, e.g. `H100 (80 GB SXM5)`."""

    name: Word
    description: str = ""
    gpu_description: str = ""
    price_cents_per_hour: MostCents
    specs: Specs


class TypeOffer(Record):
    """A type of instance, and the regions that have one free."""

    instance_type: InstanceType
    regions_with_capacity_available: list[Region] = []


class Tag(Record):
    """A tag of an instance."""

    key: str
    value: str


class TypeName(Record):
    """What an instance says of its type."""

    name: Word | Literal[""] = ""
    price_cents_per_hour: MostCents | None = None


class LambdaInstance(Record):
    """An instance. Its status is the service's own word, which may be one that is not documented.

    The token and address of its Jupyter, which are credentials, are not read.
    """

    id: Word
    status: str = ""
    name: str = ""
    ip: Address | Literal[""] | None = None
    private_ip: str | None = None
    region: Region | None = None
    instance_type: TypeName | None = None
    ssh_key_names: list[str] = []
    file_system_names: list[str] = []
    tags: list[Tag] = []

    def tag(self, key: str) -> str:
        """Return the value of a tag; empty if it has none."""
        return next((tag.value for tag in self.tags if tag.key == key), "")


class SshKey(Record):
    """A public key that the account holds."""

    id: str
    name: str
    public_key: str = ""


class FileSystem(Record):
    """A file system of the account: it is billed until it is deleted, whether an instance has it mounted or not."""

    id: str
    name: str
    mount_point: str = ""
    is_in_use: bool = False
    region: Region | None = None
    bytes_used: int | None = None


class Firewall(Record):
    """A ruleset of the account's firewall."""

    id: str


class Image(Record):
    """An image in a region."""

    id: str
    name: str = ""
    family: str = ""
    version: str = ""
    architecture: str = ""
    region: Region | None = None


class Launched(Record):
    """The answer to a launch."""

    instance_ids: Annotated[list[Word], Field(min_length=1)]
