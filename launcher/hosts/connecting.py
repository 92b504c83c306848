"""From a host to its desk, or to a line for many desks."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.hosts.agent_desk import AgentDesk
from launcher.hosts.channel import Channel, Link
from launcher.hosts.desk import Desk
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.hosts.held import HeldConnection
    from launcher.hosts.line import Connection, Line
    from launcher.hosts.ssh import SshConnection

_LOG = logging.getLogger(__name__)


def connect(host: Host) -> Desk:
    """Connect to a host and return its desk; close it, or use it in a `with`.

    Raises HostError that says what to do, UsageError for an account where machines are rented.
    """
    began = time.monotonic()
    desk = _open(host)
    _LOG.debug("%s: connected in %.3f s", host.name, time.monotonic() - began)
    return desk


def _open(host: Host) -> Desk:
    if host.kaggle is not None:
        from launcher.hosts.kaggle import open_account  # few runs are there

        return open_account(host, host.kaggle)
    _check_is_machine(host)
    return AgentDesk(Channel(host.name, _link(host)))


def open_line(host: Host) -> Line:
    """Return a line to a host: one connection for many desks. It connects for the first desk; close it, or use it in a `with`.

    Raises UsageError for an account where machines are rented.
    """
    if host.kaggle is not None:
        from launcher.hosts.kaggle import open_account_line

        return open_account_line(host, host.kaggle)
    _check_is_machine(host)
    from launcher.hosts.line import Line  # few commands follow many runs

    return Line(host, lambda: _connection(host), AgentDesk)


def _check_is_machine(host: Host) -> None:
    if host.lambda_cloud is not None:
        raise UsageError(
            f"{host.name}: there is no machine to connect to: one is rented for each launch, and is reached by its run\n"
            f"  its runs   launch ps     what it offers   launch offers --host {host.name}"
        )


def _link(host: Host) -> Link:
    if host.is_local:
        from launcher.hosts.local import LocalLink

        return LocalLink(host)
    return _over_ssh(host).only_link()


def _connection(host: Host) -> Connection:
    if host.is_local:
        from launcher.hosts.local import LocalConnection

        return LocalConnection(host)
    return _over_ssh(host)


def _over_ssh(host: Host) -> HeldConnection | SshConnection:
    """Return the connection that is held for a host, or a new one."""
    from launcher.hosts import held  # none of this is needed on this machine
    from launcher.hosts.ssh_config import hops

    route = None
    if host.hold and held.is_any():
        route = hops(host)
        if (connection := held.find(host, route)) is not None:
            return connection
    from launcher.hosts.ssh import SshConnection  # fabric and paramiko take 0.15 s to import

    made = SshConnection(host, route)
    held.note(host, needs_person=made.needs_person)
    return made
