"""The client leaves no core dump, as the agent does not: the limit that both have."""

from launcher.agent.system.core_limit import turn_off

__all__ = ["turn_off"]
