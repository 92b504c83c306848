"""Where: one module a place. Only here fabric and paramiko; everything else uses a `Desk`."""

from launcher.hosts.connecting import connect, open_line
from launcher.hosts.desk import Desk
from launcher.hosts.line import Line

__all__ = ["Desk", "Line", "connect", "open_line"]
