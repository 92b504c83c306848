"""The settings common to all providers, for renting machines from an account."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from launcher.values.base import StrictModel
from launcher.values.credential import credential_in

CONFIRM_ABOVE = 10.0
"""The largest cost in dollars that needs no confirmation, unless the table sets another one."""
PROPOSED_HOURS = 4
"""The limit in hours that an example proposes."""
LONGEST_HOURS = 24.0 * 365
OWN_MACHINE = ("127.0.0.1", "localhost", "::1")


def _listed(written: Any) -> Any:
    if isinstance(written, str):
        return (written,)
    return tuple(written) if isinstance(written, list) else written


def _service_name(written: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.:-]{0,63}", written):
        raise ValueError("expected a name or an id from the service, at most 64 characters")
    return written


ServiceName = Annotated[str, AfterValidator(_service_name)]
"""A name or an id of the service."""
Names = Annotated[tuple[ServiceName, ...], BeforeValidator(_listed)]
"""Names in the order to try them. A single name may be written without a list."""


class RentalSettings(StrictModel):
    """The machine to rent, and its cost limits.

    A provider's subclass defines its key in PROVIDERS (`provider`), the environment variable that may hold
    the user's API key (`variable`), the usual login name on its machines, and its default `api`.
    """

    provider: ClassVar[str]
    variable: ClassVar[str]
    usual_user: ClassVar[str]
    type: Names = ()
    """Instance types, in the order to try them; one may be written without a list. By default the profile and
    the price decide.
    """
    region: Names = ()
    """Regions, in the order to try them; by default any with a free instance."""
    image: ServiceName | None = None
    """An image family; by default the provider's latest."""
    file_system: ServiceName | None = None
    """A file system of the account. Set `region` to its region."""
    firewall: ServiceName | None = None
    """The id of a ruleset; by default the account's. Set `region` to its region. Port 22 must be open to you."""
    key: ServiceName | None = None
    """An SSH key of the account, whose private half is in `identity_file`, a usual file of `~/.ssh`, or
    ssh-agent. By default launcher makes one, and removes it after the last rental.
    """
    api: str
    """The address of the service, which gets your API key. A project's `launch.toml` may name only an
    address of the service itself or of this computer.
    """
    max_hours: Annotated[float, Field(gt=0, le=LONGEST_HOURS)] | None = None
    """The limit of one rental, in hours. A launch needs this or `max_cost`."""
    max_cost: Annotated[float, Field(ge=0.01)] | None = None
    """The limit of one rental, in dollars."""
    keep: bool = False
    """Keep the machine after the run, until its limit."""
    confirm_above: Annotated[float, Field(ge=0)] = CONFIRM_ABOVE
    """Dollars above which launch asks. More than 10 only in your own `~/.config/launch/hosts.toml`."""

    @field_validator("api")
    @classmethod
    def _is_an_address(cls, written: str) -> str:
        if credential_in(written):
            raise PydanticCustomError("credential", f"holds a credential: set {cls.variable} instead")
        parts = urlsplit(written)
        if parts.scheme == "http" and parts.hostname not in OWN_MACHINE:
            raise ValueError("the API key would be sent in the clear: expected https://…")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected a URL such as {cls.model_fields['api'].default}")
        return written.rstrip("/")

    @property
    def max_cents(self) -> int | None:
        """`max_cost` in whole cents, or None without one."""
        return None if self.max_cost is None else int(self.max_cost * 100 + 1e-6)
