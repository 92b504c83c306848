"""List an account's rented machines for a computer without runs there.

A run is visible only on the computer that launched it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from launcher.errors import BadFileError, HostError
from launcher.rental.lease.renter import open_account

if TYPE_CHECKING:
    from launcher.rental.rental_settings import RentalSettings
    from launcher.rental.renting import Instance
    from launcher.values.host import Host


def account_words(host: Host, settings: RentalSettings) -> list[str]:
    """Return lines that list an account's rented machines and say where their runs are visible."""
    first = (
        f"{host.name}: no run of this computer; runs of another computer are visible only on that computer"
    )
    try:
        with contextlib.closing(open_account(settings)) as account:
            found = [one for one in account.provider.instances() if one.is_billed]
    except (HostError, BadFileError) as error:
        why, *mend = str(error).splitlines()
        return [first, f"  the account's machines are unknown: {why}", *mend]
    if not found:
        return [first, f"  its account has no machine   a first run   launch --host {host.name} …"]
    count = "a machine" if len(found) == 1 else f"{len(found)} machines"
    return [
        first,
        f"  its account has {count}, rented from elsewhere:",
        *(f"    {_words(one)}" for one in found),
        f"  terminate one and lose its data   launch reconcile --adopt {_proposed(found)}",
    ]


def _proposed(found: list[Instance]) -> str:
    """Return the id of the machine that launcher rented if it is the only one, else the placeholder INSTANCE."""
    own = [one.id for one in found if one.is_launchers]
    return own[0] if len(own) == 1 else "INSTANCE"


def _words(one: Instance) -> str:
    maker = (
        f"rented by launcher, {one.name}"
        if one.is_launchers
        else f"not rented by launcher, {one.name or 'no name'}"
    )
    return ", ".join(filter(None, (one.id, one.type, one.region, one.word, maker)))
