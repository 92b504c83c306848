"""From a host to its desk."""

from __future__ import annotations

import logging
import time

from launcher.errors import UsageError
from launcher.hosts.agent_desk import AgentDesk
from launcher.hosts.channel import Channel, Link
from launcher.hosts.desk import Desk
from launcher.values.host import Host

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
    if host.lambda_cloud is not None:
        raise UsageError(
            f"{host.name}: there is no machine to connect to: one is rented for each launch, and is reached by its run\n"
            f"  its runs   launch ps     what it offers   launch offers --host {host.name}"
        )
    return AgentDesk(Channel(host.name, _link(host)))


def _link(host: Host) -> Link:
    if host.is_local:
        from launcher.hosts.local import LocalLink

        return LocalLink(host)
    from launcher.hosts.ssh import SshLink  # fabric and paramiko take 0.15 s to import

    return SshLink(host)
