"""From a host to its desk."""

from __future__ import annotations

from launcher.hosts.agent_desk import AgentDesk
from launcher.hosts.channel import Channel
from launcher.hosts.desk import Desk
from launcher.values.host import Host


def connect(host: Host) -> Desk:
    """Connect to a host and return its desk; close it, or use it in a `with`.

    Raises HostError that says what to do.
    """
    if host.is_local:
        from launcher.hosts.local import LocalLink

        return AgentDesk(Channel(host.name, LocalLink(host)))
    from launcher.hosts.ssh import SshLink  # fabric and paramiko take 0.15 s to import

    return AgentDesk(Channel(host.name, SshLink(host)))
