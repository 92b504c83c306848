"""A package index on the bridge: what a company's own index is to the machines, whose networks lead nowhere else."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import ssl
import sys
import textwrap
import threading
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from testbed.machine import CLIENT, make_bridge


class WheelServer:
    """Serves a folder of wheels over HTTP, as an index and as one flat page, to whoever knows the password if there is one."""

    def __init__(
        self,
        wheels: Path,
        user: str = "",
        password: str = "",
        address: str = CLIENT,
        has_bridge: bool = True,
        certificate: Path | None = None,
    ) -> None:
        """Name what it serves; `has_bridge` is false for an address that needs no bridge. Raises MissingPartError.

        With a `certificate`, a PEM file with its key, it speaks HTTPS.
        """
        if has_bridge:
            make_bridge()
        self.folder = wheels
        self.address = address
        self.user = user
        self.password = password
        self.requests: list[tuple[str, int]] = []  # path and status of each answer, for tests to read
        self.gate = threading.Event()  # while it is cleared, who asks for a wheel's file waits
        self.gate.set()
        self._scheme = "https" if certificate else "http"
        self._server = _Server((address, 0), _Handler)
        self._server.files = {path.name: path for path in sorted(wheels.glob("*.whl"))}
        self._server.asked = self.requests
        self._server.gate = self.gate
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        if user:
            self._server.login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def up(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def down(self) -> None:
        """End it."""
        self.gate.set()
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
        return f"{self._scheme}://{self.address}:{self.port}/simple/"

    @property
    def index_url_with_password(self) -> str:
        """Its index with user and password, as people write it into pip's settings."""
        return f"{self._scheme}://{self.user}:{self.password}@{self.address}:{self.port}/simple/"

    @property
    def find_links(self) -> str:
        """Its flat page, for `--find-links`."""
        return f"{self._scheme}://{self.address}:{self.port}/wheels/"

    def pip_env(self) -> dict[str, str]:
        """Return pip's variables for this index and no other."""
        url = self.index_url_with_password if self.user else self.index_url
        return {"PIP_INDEX_URL": url, "PIP_TRUSTED_HOST": self.address, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


class _Server(ThreadingHTTPServer):
    files: dict[str, Path]
    asked: list[tuple[str, int]]
    gate: threading.Event
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
        self.server.gate.wait()
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


def make_torch(
    folder: Path, version: str, cuda: str | None = None, codes: str = "", *, is_broken: bool = False
) -> None:
    """Put a wheel into a folder that stands for torch: it knows its version, its CUDA and its architectures.

    As torch does, it has the first two in a file `version.py`. A broken one cannot be imported.
    """
    text = f"""
        from types import SimpleNamespace
        from torch.version import __version__, cuda
        version, _C = SimpleNamespace(cuda=cuda), SimpleNamespace()
        if version.cuda:
            _C._cuda_getArchFlags = lambda: {codes!r}
        """
    files = {
        "torch/__init__.py": "raise OSError('libtorch.so is broken')\n"
        if is_broken
        else textwrap.dedent(text),
        "torch/version.py": f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n",
    }
    _write_wheel(folder, "torch", version, files)


def make_wheel(folder: Path, name: str, version: str, text: str = "", *, needs: str = "") -> None:
    """Put a wheel into a folder: a module of that name that only knows its version, or is this text."""
    _write_wheel(folder, name, version, {f"{name}.py": text or f"version = {version!r}\n"}, needs)


def _write_wheel(folder: Path, name: str, version: str, contents: dict[str, str], needs: str = "") -> None:
    about = f"{name}-{version}.dist-info"
    more = f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        **contents,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: testbed\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, data in {**files, f"{about}/RECORD": record}.items():
            wheel.writestr(path, data)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for the bridge's address; return the file with its key, and the one without."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "launch-testbed")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(CLIENT))]), critical=False)
        .sign(key, None)
        .public_bytes(serialization.Encoding.PEM)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    whole, public = folder / "server.pem", folder / "ca.pem"
    whole.write_bytes(secret + made)
    public.write_bytes(made)
    return whole, public


def _project(file: str) -> str:
    return re.sub(r"[-_.]+", "-", file.split("-", maxsplit=1)[0]).lower()


def _page(links: Iterable[tuple[str, str]]) -> bytes:
    lines = [f'<a href="{escape(url)}">{escape(text)}</a><br>' for url, text in links]
    return "\n".join(["<!DOCTYPE html><html><body>", *lines, "</body></html>"]).encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
