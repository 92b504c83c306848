"""Where: one module a place. Only here fabric and paramiko; everything else uses a `Desk`."""

from launcher.hosts.connecting import connect
from launcher.hosts.desk import Desk

__all__ = ["Desk", "connect"]
