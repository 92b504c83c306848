"""Streams as a host sends them."""

from __future__ import annotations

import io
import json
from typing import Any

from launcher.transport.channel import AgentChannel


class Stream(io.BytesIO):
    """Bytes that have all come, without a channel."""

    def read_some(self) -> bytes:
        """Return them."""
        return self.read()


def lines_of(agent: AgentChannel, verb: str, **args: Any) -> tuple[list[Any], dict[str, Any]]:
    """Ask the agent itself for a verb that sends lines; return these, without signs of life, and its answer."""
    pieces: list[bytes] = []
    reply = agent.receive_stream(verb, lambda stream: pieces.extend(iter(stream.read_some, b"")), **args)
    lines = [json.loads(line) for line in b"".join(pieces).splitlines()]
    return [line for line in lines if not isinstance(line, int)], reply.values
