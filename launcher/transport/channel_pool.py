"""The channels of one connection: those that its desks share, and those that a desk keeps while it prepares a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from launcher.errors import AgentError, ConnectionLostError, RefusedStreamError
from launcher.transport.channel import AgentChannel

MOST = 4
"""Channels at once. sshd allows 10 sessions by default (MaxSessions): there is one that reads runs, and programs may be started."""
MOST_KEPT = 3
"""Of them, those that are kept: the others always have one to share."""
ENDING_S = 10.0
"""How long a host may count a session that was closed."""
LOOK_S = 0.05


class ChannelPool:
    """Opens channels when they are needed, up to a limit, and keeps them for the next. Any thread may use it."""

    def __init__(self, host: str, open_channel: Callable[[], AgentChannel]) -> None:
        """Begin without a channel."""
        self._host = host
        self._open_channel = open_channel
        self._changed = threading.Condition()
        self._free: list[AgentChannel] = []
        self._open: set[AgentChannel] = set()
        self._count = 0
        self._kept = 0
        self._most = MOST
        self._dropped = -ENDING_S
        self._is_closed = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[AgentChannel]:
        """Yield a channel for one call, waiting for a free one. One that broke is closed. Raises HostError."""
        channel = self._take(lambda: True)
        try:
            yield channel
        except AgentError:
            self._give_back(channel)
            raise
        except BaseException:
            self._drop(channel)
            raise
        else:
            self._give_back(channel)

    def keep(self) -> AgentChannel:
        """Return a channel for the caller alone, waiting for one, until `release` or `discard`. Raises HostError."""

        def may_keep() -> bool:
            return self._kept < max(1, min(MOST_KEPT, self._most - 1))

        return self._take(may_keep, kept=1)

    def release(self, channel: AgentChannel) -> None:
        """Share a kept channel again: its agent holds nothing for it any more."""
        self._give_back(channel, kept=1)

    def discard(self, channel: AgentChannel) -> None:
        """Close a kept channel; its agent clears away what it holds."""
        self._drop(channel, kept=1)

    def close(self) -> None:
        """Close all channels; who waits for one, or uses one, gets ConnectionLostError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            channels = list(self._open)
        for channel in channels:
            channel.close()

    def _take(self, may: Callable[[], bool], kept: int = 0) -> AgentChannel:
        """Return a free channel, or a new one, once there `may` be one more."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closed or (may() and (self._free or self._count < self._most))
                )
                if self._is_closed:
                    raise ConnectionLostError(self._host, f"{self._host}: the connection was closed")
                self._kept += kept
                if self._free:
                    return self._free.pop()
                self._count += 1
            try:
                channel = self._open_channel()
            except BaseException as error:
                with self._changed:
                    self._count -= 1
                    self._kept -= kept
                    is_ending = time.monotonic() - self._dropped < ENDING_S
                    if not isinstance(error, RefusedStreamError) or not (self._count or is_ending):
                        self._changed.notify_all()
                        raise
                    self._most = max(1, self._count)
                    self._changed.wait(LOOK_S)
                continue
            with self._changed:
                self._open.add(channel)
                if not self._is_closed:
                    return channel
            self._drop(channel, kept)

    def _give_back(self, channel: AgentChannel, kept: int = 0) -> None:
        with self._changed:
            self._kept -= kept
            self._free.append(channel)
            self._changed.notify_all()

    def _drop(self, channel: AgentChannel, kept: int = 0) -> None:
        channel.close()
        with self._changed:
            self._kept -= kept
            self._count -= 1
            self._dropped = time.monotonic()
            self._open.discard(channel)
            self._changed.notify_all()
