"""Lambda Cloud's API: the service's answers, and its error codes with their `ProviderReason`.

Names and limits follow its OpenAPI description 1.10.0. Nothing here was checked against the real service.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from launcher.rental.provider import ProviderReason as Reason
from launcher.values.base import Record

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
"""An id or a name from the service.

It is shown, used in commands and sent back, so no other characters are accepted.
"""
Address = Annotated[str, Field(pattern=r"^[0-9A-Fa-f.:]{2,45}$")]
MostCents = Annotated[int, Field(gt=0, le=100_000_000)]
MostCards = Annotated[int, Field(ge=0, le=4096)]
Size = Annotated[int, Field(ge=0, le=1_000_000_000)]
UPSTREAM = "provider/"
"""The prefix of a code that comes from a service behind Lambda's own: outages, quotas, missing capacity."""


class Meaning(NamedTuple):
    """The reason for an error code, and the user's remedy. The remedy may be empty."""

    reason: Reason
    mend: str = ""


PAGE = "https://cloud.lambda.ai"
CODES = {
    "global/account-inactive": Meaning(
        Reason.ACCOUNT_INACTIVE, f"verify the e-mail address and add a payment method at {PAGE}"
    ),
    "global/conflict": Meaning(Reason.CONFLICT, "wait until the current operation is finished"),
    "global/duplicate": Meaning(Reason.DUPLICATE, "the account has one of that name: use another"),
    "filesystems/filesystem-in-use": Meaning(Reason.IN_USE, "end the instances that have it mounted"),
    "instance-operations/launch/file-system-in-wrong-region": Meaning(
        Reason.WRONG_REGION, "set `region` to the file system's own, or leave `file_system` out"
    ),
    "firewall-rulesets/firewall-ruleset-in-use": Meaning(Reason.IN_USE, "end the instances that use it"),
    "global/forbidden": Meaning(Reason.FORBIDDEN, "the account's owner may allow it"),
    "instance-operations/launch/insufficient-capacity": Meaning(
        Reason.NO_CAPACITY, "name more types or regions, or try again later"
    ),
    "global/internal-error": Meaning(Reason.SERVER_ERROR, "wait, then try again"),
    "global/invalid-address": Meaning(Reason.INVALID_ADDRESS, f"correct the billing address at {PAGE}"),
    "global/invalid-api-key": Meaning(
        Reason.UNAUTHORIZED, f"make a new key at {PAGE}/api-keys, and set LAMBDA_API_KEY"
    ),
    "global/invalid-parameters": Meaning(Reason.INVALID_PARAMETERS),
    "global/not-found": Meaning(Reason.NOT_FOUND),
    "global/object-does-not-exist": Meaning(Reason.NOT_FOUND),
    "global/quota-exceeded": Meaning(Reason.QUOTA, "end an instance, or ask Lambda's support for more"),
}
"""The codes that Lambda documents. Only codes are compared, since messages may change."""


def meaning_of(code: str) -> Meaning | None:
    """Return the meaning of a code, or None if it is not documented."""
    if code.startswith(UPSTREAM):
        return Meaning(Reason.UPSTREAM, "wait, then try again")
    return CODES.get(code)


class Region(Record):
    """A Lambda Cloud region."""

    name: Word


class Specs(Record):
    """The size of an instance type."""

    gpus: MostCards
    vcpus: Size = 0
    memory_gib: Size = 0
    storage_gib: Size = 0


class InstanceType(Record):
    """An instance type. `gpu_description` is the card with its memory, e.g. `H100 (80 GB SXM5)`."""

    name: Word
    description: str = ""
    gpu_description: str = ""
    price_cents_per_hour: MostCents
    specs: Specs


class TypeOffer(Record):
    """An instance type, and the regions with a free instance."""

    instance_type: InstanceType
    regions_with_capacity_available: list[Region] = []


class Tag(Record):
    """A tag of an instance."""

    key: str
    value: str


class TypeName(Record):
    """The type and price in an instance's entry."""

    name: Word | Literal[""] = ""
    price_cents_per_hour: MostCents | None = None


class ListedInstance(Record):
    """An instance. Its status is the service's own word, which may be undocumented.

    The token and address of its Jupyter server are credentials and are not read.
    """

    id: Word
    status: str = ""
    name: str = ""
    ip: Address | Literal[""] | None = None
    region: Region | None = None
    instance_type: TypeName | None = None
    tags: list[Tag] = []


class LambdaFileSystem(Record):
    """A file system of the account."""

    name: str
    region: Region | None = None


class LambdaImage(Record):
    """An image in a region. A launch uses the newest image of a family."""

    family: str = ""
    region: Region | None = None


class Firewall(Record):
    """A ruleset of the account's firewall, in a region."""

    id: str
    region: Region | None = None


class Launched(Record):
    """The answer to a launch."""

    instance_ids: Annotated[list[Word], Field(min_length=1)]
