"""Locks between the commands of this client: those of the agent, which end with their holder, however it dies."""

from launcher.agent.record.locks import Lock, is_locked

__all__ = ["Lock", "is_locked"]
