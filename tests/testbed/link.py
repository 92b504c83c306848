"""A bad link on demand: a relay on loopback in front of a port, which delays, stalls, freezes, cuts and refuses.

What a TCP user sees of a lossy link is a stall: a piece that was lost comes a retransmission time-out later, and all
behind it wait. So `loss` is the chance of such a stall for each 1448 bytes.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Self

SEGMENT = 1448
RTO_S = 0.2  # Linux's least
BUFFER = 64  # pieces on their way in one direction


class Link:
    """A relay from a port of its own to (address, port). Use it in a `with`; `port` is where to connect."""

    def __init__(
        self, address: str, port: int, delay_s: float = 0.0, loss: float = 0.0, seed: int = 1
    ) -> None:
        """Name the target; `delay_s` is one way, so half a round trip."""
        self.address = "127.0.0.5"
        self.port = 0
        self.delay_s = delay_s
        self.loss = loss
        self.accepted = 0
        self.refusals = 0
        self.is_frozen = False
        self._budget: int | None = None
        self._target = address, port
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._running = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._stranded: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def lead_to(self, address: str, port: int) -> None:
        """Lead new connections to another target."""
        self._target = address, port

    def cut(self) -> int:
        """Reset every open connection; return how many there were."""
        return self._call(self._cut())

    def freeze(self) -> None:
        """Deliver nothing more, in either direction, and tell nobody: a half-open connection."""
        self._loop.call_soon_threadsafe(self._freeze)

    def freeze_after(self, size: int) -> None:
        """Freeze by itself once this many bytes more have been delivered, in both directions together."""
        self._budget = size

    def thaw(self) -> None:
        """Deliver again, what waited first."""
        self._loop.call_soon_threadsafe(self._thaw)

    def strand(self) -> int:
        """Freeze the connections that are open now, for ever; new ones work. Return how many there were."""
        return self._call(self._strand())

    def refuse(self, count: int) -> None:
        """Close the next connections before a word, as sshd does beyond MaxStartups."""
        self.refusals = count

    def _call(self, coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _freeze(self) -> None:
        self.is_frozen = True
        self._running.clear()

    def _thaw(self) -> None:
        self.is_frozen = False
        self._running.set()

    def _spend(self, size: int) -> None:
        if self._budget is not None:
            self._budget -= size
            if self._budget <= 0:
                self._budget = None
                self._freeze()

    async def _open(self) -> None:
        self._running.set()
        self._server = await asyncio.start_server(self._accept, self.address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cut(self) -> int:
        open_now = list(self._writers)
        for writer in open_now:
            writer.transport.abort()
        return len(open_now) // 2

    async def _strand(self) -> int:
        self._stranded |= self._writers
        return len(self._writers) // 2

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusals > 0:
            self.refusals -= 1
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        except (OSError, asyncio.CancelledError):
            return  # cut, reset by an end, or closed: the other hears of it below
        finally:
            self._writers -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BUFFER)
        delivery = asyncio.create_task(self._deliver(pieces, writer))
        try:
            while True:
                piece = await reader.read(1 << 16)
                await pieces.put((time.monotonic() + self.delay_s, piece))
                if not piece:
                    await delivery
                    return
        finally:
            delivery.cancel()

    async def _deliver(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._running.wait()
            if writer in self._stranded:
                await asyncio.Event().wait()
            if not piece:
                writer.write_eof()
                return
            segments = -(-len(piece) // SEGMENT)
            if self._random.random() > (1 - self.loss) ** segments:
                await asyncio.sleep(RTO_S)
            writer.write(piece)
            await writer.drain()
            self._spend(len(piece))
