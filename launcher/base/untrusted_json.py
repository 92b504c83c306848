"""The one reader of JSON that a host, a service or a file said: it raises ValueError alone. It is the agent's own."""

from launcher.agent.record.strict_json import decode

__all__ = ["decode"]
