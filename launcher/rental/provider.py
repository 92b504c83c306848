"""A provider of machines by the hour, as far as renting goes. Another one is a module in `providers/` and a line below."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from launcher.errors import ServiceError, ServiceUnreachableError, UsageError
from launcher.rental.rate_limit import Waits
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import Instance, InstanceOffer, Intent, Setup
from launcher.values.base import Record

PROVIDERS = {
    "lambda": "launcher.rental.providers.lambda_cloud",
}
"""The module of each provider, a `ProviderModule`, which is loaded when it is used. A ledger's intents carry these names."""
FIRST = "lambda"
"""Whose records and addresses are that name no provider: there was one alone when they were written first."""


class ProviderReason(StrEnum):
    """Why a call to a provider failed, or what is wrong with its answer. It is the `reason` of a ServiceError."""

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


PASSING = (ProviderReason.MALFORMED, ProviderReason.RATE_LIMIT, ProviderReason.TOO_LARGE)
"""Reasons for which a call that changes nothing is worth another try."""
REFUSED = (ProviderReason.UNAUTHORIZED, ProviderReason.FORBIDDEN, ProviderReason.ACCOUNT_INACTIVE)
"""Reasons for which no call is worth another try with the same key."""


class SshKey(Record):
    """A public key that an account holds."""

    id: str
    name: str
    public_key: str = ""


class Placed(NamedTuple):
    """The name of an image or a file system of an account, and its region, if it is in one."""

    name: str
    region: str | None


class Provider(Protocol):
    """One account at a provider. Each call raises ServiceError, with a `ProviderReason`."""

    waits: Waits
    """Called with the seconds for which a launch waits for its turn."""

    @property
    def name(self) -> str:
        """Its key in PROVIDERS."""

    @property
    def account(self) -> str:
        """What stands for this account in the ledger."""

    @property
    def has_sent_launch(self) -> bool:
        """Whether the last launch may have reached the provider: one that was interrupted early has not."""

    def offers(self) -> tuple[InstanceOffer, ...]:
        """Return all types, with their prices and the regions that have one free."""

    def launch(self, intent: Intent, setup: Setup) -> tuple[str, ...]:
        """Launch an instance that carries the intent's nonce; return its id, and those of any others that came with it.

        Raises UnsettledError if it may have been accepted; otherwise it was not, NO_CAPACITY if none is free.
        """

    def instances(self) -> tuple[Instance, ...]:
        """Return every instance of the account."""

    def instance(self, instance_id: str) -> Instance | None:
        """Return one instance of the account; None if there is none."""

    def terminate(self, instance_id: str) -> None:
        """Ask for the end of an instance; one that does not exist is no error."""

    def ssh_keys(self) -> tuple[SshKey, ...]:
        """Return the public keys that instances can be made with."""

    def add_key(self, name: str, public_key: str) -> None:
        """Add a public key; DUPLICATE if there is one of that name."""

    def delete_key(self, key_id: str) -> None:
        """Remove a public key from the account; instances that have it keep it."""

    def images(self) -> tuple[Placed, ...]:
        """Return the images, each once for a region."""

    def file_systems(self) -> tuple[Placed, ...]:
        """Return the account's file systems."""

    def firewalls(self) -> tuple[str, ...]:
        """Return the ids of the rules for incoming connections that the account has."""

    def close(self) -> None:
        """Close its connections."""


class Key(Protocol):
    """A person's key for a provider."""

    def is_in(self, text: str) -> bool:
        """Whether a text holds it."""


class ProviderModule(Protocol):
    """What the module of a provider has."""

    INSTANCES_PAGE: str
    """Where a person sees what an account has, and can end it."""
    SETTINGS: type[RentalSettings]
    """The class of its settings, which has a usual `api`."""

    def person_key(self) -> Key | None:
        """Return this person's key; None without one. Raises BadFileError for a file that others can read."""

    def connect(self, api: str, hears: Callable[[float], object]) -> Provider:
        """Return the account of this person's key at an address, which is not asked yet.

        `hears` is called with the time of each answer, in seconds since 1970. Raises BadFileError or ServiceAuthError.
        """


def module_of(provider: str) -> ProviderModule:
    """Return the module of a provider. Raises UsageError for one that this version does not know."""
    if provider not in PROVIDERS:
        raise UsageError(
            f"{provider}: this launcher knows no such provider of machines: another version has rented there\n"
            "  have that version end it   launch reconcile"
        )
    return importlib.import_module(PROVIDERS[provider])


def is_passing(error: ServiceError) -> bool:
    """Whether the same call may succeed in a moment: the service did not answer, or not as it should."""
    return isinstance(error, ServiceUnreachableError) or error.reason in PASSING
