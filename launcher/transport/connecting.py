"""Connect to a host, or the login node of a cluster: one host client, or a shared connection for many."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from launcher.errors import AuthRefusedError
from launcher.transport.channel import AgentChannel, Link
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.transport.persistent_connection import PersistentConnection
    from launcher.transport.shared_connection import Connection, SharedConnection
    from launcher.transport.ssh.ssh import SshConnection
    from launcher.transport.ssh.ssh_master import MasterConnection

_LOG = logging.getLogger(__name__)


def connect(host: Host) -> HostClient:
    """Connect to a host and return its client. Close it, or use it as a context manager.

    Raises HostError with the action to take.
    """
    began = time.monotonic()
    client = HostClient(AgentChannel(host.name, _link(host)))
    _LOG.debug("%s: connected in %.3f s", host.name, time.monotonic() - began)
    return client


def open_shared_connection(host: Host) -> SharedConnection:
    """Return a shared connection to a host, for many host clients.

    It connects for the first client. Close it, or use it as a context manager.
    """
    from launcher.transport.shared_connection import SharedConnection  # few commands follow many runs

    return SharedConnection(host, lambda: _connection(host), HostClient)


def _link(host: Host) -> Link:
    if host.is_local:
        from launcher.transport.local import LocalLink

        return LocalLink(host)
    return _over_ssh(host).only_link()


def _connection(host: Host) -> Connection:
    if host.is_local:
        from launcher.transport.local import LocalConnection

        return LocalConnection(host)
    return _over_ssh(host)


def _over_ssh(host: Host) -> PersistentConnection | SshConnection | MasterConnection:
    """Return the persistent connection to a host, a new one, or the one that the user's ssh holds open.

    The last is only for a host that refuses launcher's own login.
    """
    from launcher.transport import persistent_connection  # none of this is needed on this machine
    from launcher.transport.ssh.ssh_config import hops

    route = None
    if host.hold and persistent_connection.is_any():
        route = hops(host)
        if (connection := persistent_connection.find(host, route)) is not None:
            return connection
    from launcher.transport.ssh.ssh import SshConnection  # fabric and paramiko take 0.15 s to import

    route = route or hops(host)
    try:
        made = SshConnection(host, route)
    except AuthRefusedError:
        from launcher.transport.ssh import ssh_master  # few logins need a person

        master = ssh_master.find(host, route[-1])
        if master is None:
            raise
        return master
    persistent_connection.note(host, needs_person=made.needs_person)
    return made
