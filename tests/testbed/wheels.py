"""A package index on the bridge: what a company's own index is to the machines, whose networks lead nowhere else."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import sys
import threading
from collections.abc import Iterable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from testbed.machine import CLIENT, make_bridge


class WheelServer:
    """Serves a folder of wheels over HTTP, as an index and as one flat page, to whoever knows the password if there is one."""

    def __init__(
        self, wheels: Path, user: str = "", password: str = "", address: str = CLIENT, has_bridge: bool = True
    ) -> None:
        """Name what it serves; `has_bridge` is false for an address that needs no bridge. Raises MissingPartError."""
        if has_bridge:
            make_bridge()
        self.folder = wheels
        self.address = address
        self.user = user
        self.password = password
        self.requests: list[tuple[str, int]] = []  # path and status of each answer, for tests to read
        self._server = _Server((address, 0), _Handler)
        self._server.files = {path.name: path for path in sorted(wheels.glob("*.whl"))}
        self._server.asked = self.requests
        if user:
            self._server.login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def up(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def down(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Its port."""
        return int(self._server.server_address[1])

    @property
    def index_url(self) -> str:
        """Its index, for `--index-url`, without its password."""
        return f"http://{self.address}:{self.port}/simple/"

    @property
    def index_url_with_password(self) -> str:
        """Its index with user and password, as people write it into pip's settings."""
        return f"http://{self.user}:{self.password}@{self.address}:{self.port}/simple/"

    @property
    def find_links(self) -> str:
        """Its flat page, for `--find-links`."""
        return f"http://{self.address}:{self.port}/wheels/"

    def pip_env(self) -> dict[str, str]:
        """Return pip's variables for this index and no other."""
        url = self.index_url_with_password if self.user else self.index_url
        return {"PIP_INDEX_URL": url, "PIP_TRUSTED_HOST": self.address, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


class _Server(ThreadingHTTPServer):
    files: dict[str, Path]
    asked: list[tuple[str, int]]
    login = ""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone: a build that is cancelled does that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer."""
        if self.server.login and self.headers["Authorization"] != self.server.login:
            self._say(401, b"who are you?", ("WWW-Authenticate", 'Basic realm="wheels"'))
            return
        folder, _, name = unquote(self.path).strip("/").partition("/")
        projects = {_project(file) for file in self.server.files}
        if folder == "wheels" and name in self.server.files:
            self._send_file(self.server.files[name])
        elif folder == "wheels" and not name:
            self._say(200, _page((f"/wheels/{quote(file)}", file) for file in self.server.files))
        elif folder == "simple" and name in projects:
            files = [path for file, path in self.server.files.items() if _project(file) == name]
            self._say(
                200,
                _page((f"/wheels/{quote(path.name)}#sha256={_sha256(path)}", path.name) for path in files),
            )
        elif folder == "simple" and not name:
            self._say(200, _page((f"/simple/{project}/", project) for project in sorted(projects)))
        else:
            self._say(404, b"not here")

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def _send_file(self, path: Path) -> None:
        self._begin(200, path.stat().st_size, "application/octet-stream")
        if self.command == "GET":
            with path.open("rb") as file:
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _say(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self._begin(status, len(body), "text/html", *headers)
        if self.command == "GET":
            self.wfile.write(body)

    def _begin(self, status: int, size: int, kind: str, *headers: tuple[str, str]) -> None:
        self.server.asked.append((self.path, status))
        self.send_response(status)
        for key, value in (("Content-Length", str(size)), ("Content-Type", kind), *headers):
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Keep quiet: `requests` is the log."""


def _project(file: str) -> str:
    return re.sub(r"[-_.]+", "-", file.split("-", maxsplit=1)[0]).lower()


def _page(links: Iterable[tuple[str, str]]) -> bytes:
    lines = [f'<a href="{escape(url)}">{escape(text)}</a><br>' for url, text in links]
    return "\n".join(["<!DOCTYPE html><html><body>", *lines, "</body></html>"]).encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
