"""From a host to an agent on it."""

from __future__ import annotations

from launcher.hosts.agent import Agent
from launcher.values.host import Host


def connect(host: Host) -> Agent:
    """Connect to a host and return its agent; close it, or use it in a `with`.

    Raises HostError, with what to do about it.
    """
    if host.is_local:
        from launcher.hosts.local import LocalLink

        return Agent(host.name, LocalLink(host))
    from launcher.hosts.ssh import SshLink  # fabric and paramiko cost 0.15 s: only those who need them pay

    return Agent(host.name, SshLink(host))
