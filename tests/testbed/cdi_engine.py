"""A newer engine with CDI devices, in front of Debian's, which has none: what it reports and refuses is the newer one's.

The containers are the real engine's, which gets a request for NVIDIA's hook in place of one for CDI devices. Sources of the
newer one's words: Docker's API history (`CDISpecDirs` since 1.44, `DiscoveredDevices` since 1.50), moby's `daemon/cdi.go`.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import socketserver
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_REFUSED = 'could not select device driver \\"cdi\\" with capabilities: []'


class CdiEngine:
    """A socket `path` before an engine's. `devices` are the CDI names of its cards' UUIDs. Use it in a `with`."""

    def __init__(self, path: Path, target: Path, api: str, devices: Mapping[str, str]) -> None:
        """`api` is the version that it reports: from 1.50 on it lists the devices."""
        self.path = path
        self.target = target
        self.api = api
        self.devices = devices
        self.requests: list[dict[str, Any]] = []
        """The requests for devices of the containers that were made."""
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # either side has gone
                    outer._serve(self)

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        path.chmod(0o666)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink()

    def _serve(self, client: socketserver.StreamRequestHandler) -> None:
        """Pass one request on, and its answer back; the client makes a connection for the next one."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = client.rfile.readline()
            if not line:
                return
            head += line
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        body = client.rfile.read(int(length[1])) if length else b""
        path = head.split(b" ", 2)[1]
        head = re.sub(rb"^(\S+ /v)1\.\d+/", rb"\g<1>1.41/", head)
        if path.endswith(b"/containers/create") or b"/containers/create?" in path:
            body = self._without_cdi(body)
        is_stream = b"upgrade:" in head.lower()
        if not is_stream:
            head = re.sub(rb"(?im)^(?:connection|content-length):.*\r\n", b"", head)
            head = head[:-2] + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(str(self.target))
            engine.sendall(head + body)
            if not is_stream:
                client.wfile.write(self._as_newer(path, _all_of(engine)))
                client.rfile.read()  # until the client has closed it
                return
            back = threading.Thread(target=_carry, args=(engine, client.connection), daemon=True)
            back.start()
            _carry(client.connection, engine)
            back.join()

    def _without_cdi(self, body: bytes) -> bytes:
        config = json.loads(body)
        asked = (config.get("HostConfig") or {}).get("DeviceRequests") or []
        self.requests += json.loads(json.dumps(asked))
        for one in asked:
            names = one.get("DeviceIDs", [])
            if one["Driver"] == "cdi" and {*names} <= {*self.devices}:
                uuids = [self.devices[name] for name in names]
                one |= {"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}
        return json.dumps(config).encode()

    def _as_newer(self, path: bytes, answer: bytes) -> bytes:
        head, _, body = answer.partition(b"\r\n\r\n")
        if path.endswith(b"/start"):
            names = " ".join(self.requests[-1]["DeviceIDs"]) if self.requests else ""
            refusal = f"CDI device injection failed: unresolvable CDI devices {names}"
            body = body.replace(_REFUSED.encode(), refusal.encode())
        elif path.endswith(b"/version"):
            body = json.dumps({**json.loads(body), "ApiVersion": self.api}).encode()
        elif path.endswith(b"/info"):
            more: dict[str, Any] = {"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}
            if self.api >= "1.50" and self.devices:
                more["DiscoveredDevices"] = [{"Source": "cdi", "ID": name} for name in self.devices]
            body = json.dumps({**json.loads(body), **more}).encode()
        lines = head.split(b"\r\n")
        kept = [
            line for line in lines if not line.lower().startswith((b"content-length:", b"transfer-encoding:"))
        ]
        return b"\r\n".join([*kept, b"Content-Length: %d" % len(body), b"", body])


def _all_of(source: socket.socket) -> bytes:
    found = b""
    while piece := source.recv(1 << 16):
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + (_dechunked(body) if b"chunked" in head.lower() else body)


def _dechunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one of them has gone, and the other is told so below
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
