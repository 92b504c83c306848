"""The channels of one connection: shared ones, and reserved ones of host clients that prepare a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from launcher.errors import AgentError, ConnectionLostError, RefusedStreamError
from launcher.transport.channel import AgentChannel

MOST = 4
"""The maximum number of channels at a time.

sshd allows 10 sessions by default (MaxSessions). One more session reads runs, and programs need some too.
"""
MAX_KEPT = 3
"""The maximum number of reserved channels, so that one is always left to share."""
ENDING_S = 10.0
"""The seconds for which a host may still count a closed session."""
LOOK_S = 0.05


class ChannelPool:
    """Opens channels on demand, up to a limit, and reuses them. Thread-safe."""

    def __init__(self, host: str, open_channel: Callable[[], AgentChannel]) -> None:
        """Start without a channel."""
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
        """Yield a channel for one call. Wait for a free one. Close it if it breaks. Raises HostError."""
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
        """Reserve a channel for the caller, until `release` or `discard`.

        Wait for a free one. Raises HostError.
        """

        def may_keep() -> bool:
            return self._kept < max(1, min(MAX_KEPT, self._most - 1))

        return self._take(may_keep, kept=1)

    def release(self, channel: AgentChannel) -> None:
        """Share a reserved channel again, after its agent has released everything it held."""
        self._give_back(channel, kept=1)

    def discard(self, channel: AgentChannel) -> None:
        """Close a reserved channel. Its agent removes what it holds."""
        self._drop(channel, kept=1)

    def close(self) -> None:
        """Close all channels. Threads that wait for one, or use one, get ConnectionLostError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            channels = list(self._open)
        for channel in channels:
            channel.close()

    def _take(self, may: Callable[[], bool], kept: int = 0) -> AgentChannel:
        """Return a free channel, or a new one. Wait until `may` and the limit allow it."""
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
