"""The interface of a provider of machines by the hour.

A new provider is a module in `providers/` and a line in PROVIDERS.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from launcher.errors import ServiceError, ServiceUnreachableError, UsageError
from launcher.rental.rate_limit import Waits
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import Instance, InstanceOffer, Intent, LaunchOptions
from launcher.values.base import Record

PROVIDERS = {
    "lambda": "launcher.rental.providers.lambda_cloud",
}
"""The module of each provider, a `ProviderModule`, imported on first use.

The ledger's intents use these names.
"""
FIRST = "lambda"
"""The provider of records and address files that name none: a version that knew only one provider wrote them."""


class ProviderReason(StrEnum):
    """Why a call to a provider failed or its answer is unusable. It is the `reason` of a ServiceError."""

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
"""Reasons after which a call that changes nothing should be tried again."""
REFUSED = (ProviderReason.UNAUTHORIZED, ProviderReason.FORBIDDEN, ProviderReason.ACCOUNT_INACTIVE)
"""Reasons after which no call with the same key will succeed."""


class SshKey(Record):
    """A public key stored in an account."""

    id: str
    name: str
    public_key: str = ""


class Placed(NamedTuple):
    """The name of an image, a file system or a ruleset of an account, and its region, if it has one."""

    name: str
    region: str | None


class Provider(Protocol):
    """One account at a provider. Each call raises ServiceError, with a `ProviderReason`."""

    waits: Waits
    """Called with the seconds that a launch waits for its turn."""

    @property
    def name(self) -> str:
        """The provider's key in PROVIDERS."""

    @property
    def account(self) -> str:
        """The name of this account in the ledger."""

    @property
    def has_sent_launch(self) -> bool:
        """Whether the last launch may have reached the provider.

        False if it was interrupted before the call.
        """

    def offers(self) -> tuple[InstanceOffer, ...]:
        """Return all types, with their prices and the regions with a free instance."""

    def launch(self, intent: Intent, setup: LaunchOptions) -> tuple[str, ...]:
        """Launch an instance that carries the intent's nonce. Return its id and the ids of extra instances.

        Raises UnknownOutcomeError if the provider may have accepted the launch. After any other error it did
        not; NO_CAPACITY means that none is free.
        """

    def instances(self) -> tuple[Instance, ...]:
        """Return every instance of the account."""

    def instance(self, instance_id: str) -> Instance | None:
        """Return one instance of the account, or None if it does not exist."""

    def terminate(self, instance_id: str) -> bool:
        """Ask for the termination of an instance. Return False if the provider does not know it."""

    def ssh_keys(self) -> tuple[SshKey, ...]:
        """Return the account's public keys, which new instances can use."""

    def add_key(self, name: str, public_key: str) -> None:
        """Add a public key. The reason is DUPLICATE if the name exists."""

    def delete_key(self, key_id: str) -> None:
        """Remove a public key from the account. Existing instances keep it."""

    def images(self) -> tuple[Placed, ...]:
        """Return the images, each once per region."""

    def file_systems(self) -> tuple[Placed, ...]:
        """Return the account's file systems."""

    def firewalls(self) -> tuple[Placed, ...]:
        """Return the account's rulesets for incoming connections, by id."""

    def close(self) -> None:
        """Close the connections."""


class Key(Protocol):
    """A user's API key for a provider."""

    @property
    def origin(self) -> str:
        """The name of the variable, or the path of the file, that holds it."""

    def is_in(self, text: str) -> bool:
        """Whether a text contains the key."""


class ProviderModule(Protocol):
    """The interface of a provider's module."""

    INSTANCES_PAGE: str
    """The web page where users see an account's instances and can terminate them."""
    SETTINGS: type[RentalSettings]
    """The provider's settings class, with a default `api`."""

    def person_key(self) -> Key | None:
        """Return this user's key, or None. Raises BadFileError for a file that others can read."""

    def connect(self, api: str, hears: Callable[[float], object]) -> Provider:
        """Return the account of this user's key at an address. No call is made yet.

        `hears` is called with the time of each answer, in seconds since 1970. Raises BadFileError or
        ServiceAuthError.
        """


def module_of(provider: str) -> ProviderModule:
    """Return a provider's module. Raises UsageError for a provider that this version does not know."""
    if provider not in PROVIDERS:
        raise UsageError(
            f"{provider}: this version of launcher does not know this provider; another version has rented a machine from it\n"
            "  terminate the machine with that version   launch reconcile"
        )
    return importlib.import_module(PROVIDERS[provider])


def is_passing(error: ServiceError) -> bool:
    """Whether the same call may soon succeed: the service did not answer, or its answer was unusable."""
    return isinstance(error, ServiceUnreachableError) or error.reason in PASSING
