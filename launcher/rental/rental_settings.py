"""How machines are rented from an account of a provider: what all providers' settings have."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from launcher.values.base import Written
from launcher.values.credential import credential_in

CONFIRM_ABOVE = 10.0
"""The largest cost in dollars that is agreed to without a question, if the table does not say."""
PROPOSED_HOURS = 4
"""The limit of a rental that an example proposes."""
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
"""A name or an id in the service's own words."""
Names = Annotated[tuple[ServiceName, ...], BeforeValidator(_listed)]
"""Some of them in the order in which they are tried; a single one may be written without a list."""


class RentalSettings(Written):
    """What is rented, and how much it may cost.

    `type` and `region` empty leave the choice to the profile, the price and what is free. `image` is a family's name, None
    the provider's latest default; `file_system` a file system of the account; `firewall` the id of a ruleset; `key` an SSH
    key of the account, None one that launcher makes. `max_hours` and `max_cost`, in dollars, limit one rental, and one of them
    is needed to launch. `keep`: do not end the rent with the run; the limit ends it. Above `confirm_above` dollars the user is
    asked. A provider's own settings name its key in PROVIDERS, the variable that may hold a person's key, the usual login name on its
    machines, and its usual `api`.
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
        """The limit in whole cents, None without one."""
        return None if self.max_cost is None else int(self.max_cost * 100 + 1e-6)
