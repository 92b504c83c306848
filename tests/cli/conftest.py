"""What the tests of the command line share."""

from testbed.used_agent import client, used_agent

__all__ = ["client", "used_agent"]
