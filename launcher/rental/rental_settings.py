"""The settings common to all providers, for renting machines from an account."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from launcher.values.base import Written
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
        raise ValueError("expected a name or an id of the service's, at most 64 characters")
    return written


ServiceName = Annotated[str, AfterValidator(_service_name)]
"""A name or an id of the service."""
Names = Annotated[tuple[ServiceName, ...], BeforeValidator(_listed)]
"""Names in the order to try them. A single name may be written without a list."""


class RentalSettings(Written):
    """The machine to rent, and its cost limits.

    Empty `type` and `region` leave the choice to the profile, the price and the free capacity. `image` is an
    image family, or None for the provider's latest default. `file_system` is a file system of the account.
    `firewall` is the id of a ruleset. `key` is an SSH key of the account, or None for one that launcher
    creates. `max_hours` and `max_cost`, in dollars, limit one rental; a launch needs at least one of them.
    `keep`: do not terminate the machine with the run, but at the limit. Above `confirm_above` dollars the
    user must confirm.

    A provider's subclass defines its key in PROVIDERS (`provider`), the environment variable that may hold
    the user's API key (`variable`), the usual login name on its machines, and its default `api`.
    """

    provider: ClassVar[str]
    variable: ClassVar[str]
    usual_user: ClassVar[str]
    type: Names = ()
    region: Names = ()
    image: ServiceName | None = None
    file_system: ServiceName | None = None
    firewall: ServiceName | None = None
    key: ServiceName | None = None
    api: str
    max_hours: Annotated[float, Field(gt=0, le=LONGEST_HOURS)] | None = None
    max_cost: Annotated[float, Field(ge=0.01)] | None = None
    keep: bool = False
    confirm_above: Annotated[float, Field(ge=0)] = CONFIRM_ABOVE

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
