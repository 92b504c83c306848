"""Connect to a host name over TCP within a deadline. Try its addresses in order."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from launcher.transport.resolving import resolve

CONNECT_S = 10
_BIND_TO_DEVICE = 25
"""SO_BINDTODEVICE of Linux, which Python's `socket` does not name before 3.13."""


class Carrier(NamedTuple):
    """A TCP connection, and the IP address at its other end."""

    stream: socket.socket
    peer: str


Family = socket.AddressFamily


class SourceError(OSError):
    """Raised when a connection cannot begin where ssh's configuration says. The message names the option."""


class Source(NamedTuple):
    """Where a connection begins: ssh's BindAddress and BindInterface, and the only family of addresses to use."""

    address: str | None = None
    interface: str | None = None
    family: Family = socket.AF_UNSPEC

    def bind(self, stream: socket.socket) -> None:
        """Make a socket begin there. Raises SourceError."""
        option = f"BindInterface {self.interface}"
        try:
            if self.interface:
                stream.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, self.interface.encode() + b"\0")
            option = f"BindAddress {self.address}"
            if self.address:
                stream.bind((self.address, 0))
        except OSError as error:
            raise SourceError(f"{option}: {error.strerror}") from error


ANYWHERE = Source()


def dial(address: str, port: int, deadline: float, source: Source = ANYWHERE) -> Carrier:
    """Connect by the deadline (monotonic clock). Raises TimeoutError, SilentResolverError, SourceError or OSError."""
    addresses = [
        one for one in resolve(address, port, deadline) if source.family in (socket.AF_UNSPEC, one[0])
    ]
    problem: OSError | None = None
    for number, (family, kind, protocol, _, place) in enumerate(addresses):
        stream = socket.socket(family, kind, protocol)
        try:
            source.bind(stream)
            stream.settimeout(max(0.1, (deadline - time.monotonic()) / (len(addresses) - number)))
            stream.connect(place)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            stream.close()
            # BindAddress fails for each address of the other family.
            problem = problem if problem is not None and isinstance(error, SourceError) else error
        except BaseException:
            stream.close()
            raise
        else:
            return Carrier(stream, str(place[0]))
    raise problem or OSError(f"{address} has no TCP address")
