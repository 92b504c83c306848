"""HTTP connections with a deadline for the head of a response.

A limit on each read is not enough: a server could send one byte before each limit, and never finish.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection


class NoRedirectSession(requests.Session):
    """A session that treats a redirect as an ordinary response. Its body is read only on request."""

    def __init__(self, answer_s: float) -> None:
        """Allow this many seconds for the head of a response."""
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _DeadlineAdapter(answer_s))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: redirects are not followed."""


@contextlib.contextmanager
def _cut_after(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """Cut a connection and raise TimeoutError if the block takes longer."""
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        with contextlib.suppress(OSError, TypeError):  # TypeError: the connection has been closed
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # below TLS, whose shutdown would wait

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    try:
        timer.start()  # in the `try`: after Ctrl-C here, a timer left running would cut a later call
        yield
    finally:
        timer.cancel()
        if is_cut.is_set():
            raise TimeoutError(f"no answer within {seconds:.0f} s")


class _DeadlineAdapter(HTTPAdapter):
    """Makes connections with a deadline, to proxies too."""

    def __init__(self, answer_s: float) -> None:
        self._pools = _pools(answer_s)
        super().__init__()

    def init_poolmanager(self, *values: Any, **named: Any) -> None:
        super().init_poolmanager(*values, **named)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **named)
        if not proxy.lower().startswith("socks"):  # socks has its own classes
            manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(answer_s: float) -> dict[str, type[HTTPConnectionPool]]:
    class Plain(HTTPConnection):
        def getresponse(self) -> Any:
            with _cut_after(self, answer_s):
                return super().getresponse()

    class Secure(HTTPSConnection):
        def getresponse(self) -> Any:
            with _cut_after(self, answer_s):
                return super().getresponse()

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
