"""A provider of machines by the hour, as far as renting goes: another cloud is another module with these methods."""

from __future__ import annotations

from typing import Protocol

from launcher.errors import ServiceError, ServiceUnreachableError
from launcher.values.renting import Instance, Intent, Offer, Setup

PASSING = ("malformed", "rate-limit", "too-large")
"""Reasons for which a call that changes nothing is worth another try."""


class Provider(Protocol):
    """One account at a provider."""

    @property
    def name(self) -> str:
        """The provider's name."""

    @property
    def account(self) -> str:
        """What stands for this account in the ledger."""

    @property
    def has_sent_launch(self) -> bool:
        """Whether the last launch may have reached the provider: one that was interrupted early has not."""

    def offers(self) -> tuple[Offer, ...]:
        """Return all types, with their prices and the regions that have one free."""

    def launch(self, intent: Intent, setup: Setup) -> tuple[str, ...]:
        """Launch an instance that carries the intent's nonce; return its id, and those of any others that came with it.

        Raises UnsettledError if it may have been accepted, ServiceError if it was not.
        """

    def instances(self) -> tuple[Instance, ...]:
        """Return every instance of the account. Raises ServiceError."""

    def instance(self, instance_id: str) -> Instance | None:
        """Return one instance of the account; None if there is none. Raises ServiceError."""

    def terminate(self, instance_id: str) -> None:
        """Ask for the end of an instance; one that does not exist is no error. Raises ServiceError."""


def is_passing(error: ServiceError) -> bool:
    """Whether the same call may succeed in a moment: the service did not answer, or not as it should."""
    return isinstance(error, ServiceUnreachableError) or error.reason in PASSING
