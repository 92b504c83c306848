"""The rows of `launch doctor` for a probed host, shared by the backends. Nothing is asked a second time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.probing import profiles_named
from launcher.errors import (
    AuthRefusedError,
    HostError,
    HostKeyError,
    RefusedError,
    ServiceAuthError,
    UnknownNameError,
    UnreachableError,
    UsageError,
)
from launcher.planning.host_readiness import machine_rows
from launcher.values.prerequisite import Prerequisite

if TYPE_CHECKING:
    from launcher.backends.base.probing import Probed
    from launcher.config.lookup import Lookup

_NAMES = (
    (HostKeyError, "host key"),
    (ServiceAuthError, "credentials"),
    (AuthRefusedError, "login"),
    (UnreachableError, "connection"),
    (HostError, "probe"),
    (UsageError, "settings"),
)
"""The name of the row for each kind of error, the narrower kinds first."""


def of_machine(probed: Probed, lookup: Lookup) -> Iterator[Prerequisite]:
    """Yield the rows of a machine that runs jobs itself."""
    yield from connection_rows(probed)
    if probed.facts is None:
        return
    try:
        named = profiles_named(probed.host, lookup)
    except UnknownNameError as error:
        named = ()
        yield Prerequisite.lacking("settings", str(error))
    yield from machine_rows(probed.host, probed.facts, named)


def connection_rows(probed: Probed) -> Iterator[Prerequisite]:
    """Yield the row of a host's connection, and the row of its problem."""
    host, facts = probed.host, probed.facts
    if facts is not None:
        key = "" if host.is_local else ", its host key is known"
        yield Prerequisite.ok("connection", f"{facts.user}@{facts.hostname}{key}")
    if (problem := problem_row(probed)) is not None:
        yield problem


def problem_row(probed: Probed) -> Prerequisite | None:
    """Return the row of a host's problem; None without one."""
    host, error = probed.host, probed.error
    if error is None:
        return None
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "checks")
    message = str(error).removeprefix(f"{host.name}: ")
    by_hand = f"try   {host.by_hand('true')}" if host.address is not None and "\n" not in message else ""
    is_of_cards = probed.facts is not None and isinstance(error, UnknownNameError | RefusedError)
    return Prerequisite.lacking("cards" if is_of_cards else name, message, by_hand)
