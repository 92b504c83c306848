"""The only reader of JSON from a host, a service or a file.

It raises only ValueError. It is the agent's function.
"""

from launcher.agent.record.strict_json import decode

__all__ = ["decode"]
