"""Connect to a host, or to a run's host, which must have the root that the run was launched in."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.backends.registry import backend_of
from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.runs.rented.machine_gone import check_rented
from launcher.transport.client.host_client import HostClient
from launcher.transport.shared_connection import SharedConnection
from launcher.values.host import Host

Opening = Callable[[Host], HostClient]
"""A function that opens a host client; by default it makes a new connection."""


def over_shared_connection(line: SharedConnection) -> Opening:
    """Return an `Opening` that uses a shared connection for its host.

    Any other host gets a separate connection.
    """

    def opening(host: Host) -> HostClient:
        return line.client() if line.leads_to(host) else backend_of(host).connect(host)

    return opening


JUST_NOW_S = 5.0
"""How long a client that was left open may be used again, in seconds. Its link may be lost later, e.g. while the user types."""
_left_open: list[tuple[Host, HostClient, float]] = []


def keep_for_next_connect(host: Host, client: HostClient) -> None:
    """Keep a host client open for the next caller that connects to the host, e.g. after a run was found there."""
    _left_open.append((host, client, time.monotonic()))


def _taken_over(host: Host) -> HostClient | None:
    """Return the client that was recently left open for a host; close all others."""
    client = None
    while _left_open:
        place, left, since = _left_open.pop()
        if client is None and place == host and time.monotonic() - since < JUST_NOW_S:
            client = left
        else:
            left.close()
    return client


def connect(host: Host, opening: Opening | None = None) -> HostClient:
    """Connect to a host and return its client; close it, or use it in a `with`.

    The host is informed about its abandoned runs. Raises HostError that says what to do.
    """
    if opening is None and (left := _taken_over(host)) is not None:
        return left
    client = (opening or backend_of(host).connect)(host)
    if pending := move_records.pending():
        from launcher.runs.move.pending_stops import deliver  # hardly ever needed

        try:
            deliver(client, pending)
        except BaseException:
            client.close()
            raise
    return client


def open_client(host: Host, local_copy: LocalCopy, opening: Opening | None = None) -> HostClient:
    """Connect to the host of a run and return its client; close it, or use it in a `with`.

    Raises HostError that says what to do, MachineGoneError for a rented machine that is gone,
    OtherRootError for a host that has another root.
    """
    check_rented(local_copy)
    client = connect(host, opening)
    try:
        local_copy.check_root(host.name, client.root_id)
    except BaseException:
        client.close()
        raise
    return client
