"""The number of bytes that each TCP socket has carried, from the kernel's socket diagnostics."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Dict, Iterator

_SOCK_DIAG = 4  # a netlink family
_BY_FAMILY = 20
_DUMP = 0x301  # a request for all
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_INFO = 2  # the attribute with the kernel's tcp_info
_INODE_AT = 68  # within a socket's entry
_TOLD = 72
_BYTES = struct.Struct("=QQ")
_BYTES_AT = 120  # in a tcp_info: acknowledged and received bytes; since Linux 4.1
_ALL_STATES = 0xFFFFFFFF
_MAX_BYTES = 1 << 18


def tcp_bytes() -> Dict[int, int]:
    """Return the bytes that each socket of this network namespace has sent and received, by its inode.

    Raises OSError if the kernel does not report them.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux counts them")
    found: Dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as link:
        link.settimeout(5.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES)
            link.sendto(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request, (0, 0))
            found.update(_read(link))
    return found


def _read(link: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield the inode and the bytes of each socket in an answer."""
    while True:
        data = link.recv(_MAX_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR or length < _HEADER.size:
                raise OSError("the kernel does not report sockets")
            told = data[at + _HEADER.size : at + length]
            if len(told) >= _TOLD:
                yield struct.unpack_from("=I", told, _INODE_AT)[0], _bytes_of(told)
            at += (length + 3) & ~3


def _bytes_of(told: bytes) -> int:
    at = _TOLD
    while at + _ATTRIBUTE.size <= len(told):
        length, kind = _ATTRIBUTE.unpack_from(told, at)
        if length < _ATTRIBUTE.size:
            break
        begin = at + _ATTRIBUTE.size
        if kind == _INFO and length >= _ATTRIBUTE.size + _BYTES_AT + _BYTES.size:
            return sum(_BYTES.unpack_from(told, begin + _BYTES_AT))
        at += (length + 3) & ~3
    return 0
