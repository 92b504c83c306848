"""Where: one module a place. Only here fabric and paramiko; the rest sees a `Link` and an `Agent`."""

from launcher.hosts.agent import Agent
from launcher.hosts.connecting import connect

__all__ = ["Agent", "connect"]
