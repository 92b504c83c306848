"""Disable core dumps of the client, with the agent's function."""

from launcher.agent.system.core_limit import turn_off

__all__ = ["turn_off"]
