"""Locks between this client's commands, from the agent's module.

They end with their holder, even if it is killed.
"""

from launcher.agent.record.locks import Lock, is_locked

__all__ = ["Lock", "is_locked"]
