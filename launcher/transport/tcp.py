"""Connect to a host name over TCP within a deadline. Try its addresses in order."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from launcher.transport.resolving import resolve

CONNECT_S = 10


class Carrier(NamedTuple):
    """A TCP connection, and the IP address at its other end."""

    stream: socket.socket
    peer: str


def dial(address: str, port: int, deadline: float) -> Carrier:
    """Connect by the deadline (monotonic clock). Raises TimeoutError, SilentResolverError or OSError."""
    addresses = resolve(address, port, deadline)
    problem: OSError | None = None
    for number, (family, kind, protocol, _, place) in enumerate(addresses):
        stream = socket.socket(family, kind, protocol)
        try:
            stream.settimeout(max(0.1, (deadline - time.monotonic()) / (len(addresses) - number)))
            stream.connect(place)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            stream.close()
            problem = error
        except BaseException:
            stream.close()
            raise
        else:
            return Carrier(stream, str(place[0]))
    raise problem or OSError(f"{address} has no TCP address")
