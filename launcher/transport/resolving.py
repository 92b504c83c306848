"""Look up an address within a deadline."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from typing import Any


class SilentResolverError(OSError):
    """Raised when a name is not resolved in time."""


def resolve(address: str, port: int, deadline: float) -> list[Any]:
    """Return the result of `getaddrinfo`, from a thread that is abandoned at the deadline (monotonic clock).

    The C library allows five seconds for each server, attempt and search domain, and cannot be interrupted.
    """
    answer: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name=f"resolve {address}", daemon=True).start()
    try:
        return answer.result(max(0.1, deadline - time.monotonic()))
    except TimeoutError:
        raise SilentResolverError from None
