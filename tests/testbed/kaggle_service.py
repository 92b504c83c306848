"""A stand-in for Kaggle's service, over HTTP on loopback, which really runs the scripts that are pushed to it.

`kaggle_state.py` has the calls, `kaggle_session.py` the sessions. Here are routes, authentication, links that expire, the
log's stream, faults on demand, and the ledger: a line of JSON for each call, on disk, which is the witness of tests.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from testbed.kaggle_session import Session
from testbed.kaggle_state import Account, Body, Habits, RefusalError, State, persisted_log

END_OF_LOG = "END_OF_LOG"
HTML = b"<html><head><title>Error</title></head><body><h1>Something went wrong</h1></body></html>"
SERVICES = {
    "kernels.KernelsApiService": (
        *("SaveKernel", "GetKernel", "GetKernelSessionStatus", "ListKernelSessionOutput", "ListKernelFiles"),
        *("DeleteKernel", "ListKernels", "GetAcceleratorQuotaStatistics"),
    ),
    "datasets.DatasetApiService": (
        *("CreateDataset", "CreateDatasetVersion", "GetDatasetStatus", "GetDataset", "ListDatasetFiles"),
        "DeleteDataset",
    ),
    "blobs.BlobApiService": ("StartBlobUpload",),
    "security.OAuthService": ("IntrospectToken",),
    "users.AccountService": ("GenerateAccessToken",),
}
ANONYMOUS = ("IntrospectToken", "GenerateAccessToken")


@dataclass
class Fault:
    """What goes wrong with the next calls of a method (`link` for links, `log` for the stream).

    `kind` is `status` (with HTML, or JSON if `message`), `lost` (accepted, then cut off without an answer), `held` (accepted,
    and no answer for `wait_s`), `cut` (cut off before it is accepted), `late` (cut off at once, and accepted `wait_s` later), `half` (a link's file breaks off in its middle), `accepted` (accepted, then the status, with `values` as JSON if there are any), `answer` (a good answer with these `values`), `broken`
    (a good status with JSON that is none), or `silent` (no answer for `wait_s`).
    """

    kind: str
    status: int = 500
    message: str = ""
    values: Body = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 60.0
    times: int = 1


class KaggleService:
    """The stand-in. `habits` and `faults` may be changed while it serves."""

    def __init__(self, folder: Path, habits: Habits | None = None) -> None:
        """Prepare it; its files lie in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.habits = habits or Habits()
        self.state = State(folder, self.habits)
        self.state.link_to = self._sign
        self.ledger = folder / "ledger.jsonl"
        self.ledger.touch()
        self.faults: dict[str, list[Fault]] = {}
        self.cut_streams_after_s: float | None = None
        self.is_cut_clean = False  # else the connection breaks in the middle of a chunk
        self.is_going = threading.Event()
        self._links: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def account(self, name: str = "alice", key: str = "", token: str = "") -> Account:
        """Add an account."""
        account = Account(name, key or f"key-of-{name}", token or f"KGAT_{name}")
        self.state.accounts.append(account)
        return account

    @property
    def endpoint(self) -> str:
        """Its address, for the endpoint table of the official CLI."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base(self) -> str:
        """Its address, for our client."""
        return f"{self.endpoint}/v1"

    def fail(self, method: str, kind: str, **values: Any) -> None:
        """Let the next calls of a method go wrong, see Fault."""
        self.faults.setdefault(method, []).append(Fault(kind, **values))

    def expire_links(self) -> None:
        """Let every link that was given so far be expired."""
        with self._lock:
            self._links = {key: (path, 0.0) for key, (path, _) in self._links.items()}

    def calls(self, method: str = "") -> list[dict[str, Any]]:
        """Return the ledger's lines, or those of one method."""
        whole, _, _ = self.ledger.read_text().rpartition("\n")  # a long last line may be under way
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if not method or line["method"] == method]

    def wait_for(self, ref: str, *statuses: str, timeout_s: float = 30.0) -> Session:
        """Wait until the last session of a kernel is in one of some statuses."""
        session = self.state.kernels[ref].versions[-1].session
        with session.changed:
            assert session.changed.wait_for(lambda: session.status in statuses, timeout_s), session.status
        return session

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def unplug(self) -> None:
        """Take no call any more; its sessions go on."""
        self._server.shutdown()
        self._server.server_close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, with all sessions."""
        self.is_going.set()
        self._server.shutdown()
        self._thread.join()
        self.state.down()
        self._server.server_close()

    def record(self, line: dict[str, Any]) -> None:
        """Add a line to the ledger."""
        with self._lock, self.ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def take_fault(self, method: str) -> Fault | None:
        """Return the fault of this call, if it is to have one."""
        with self._lock:
            pending = self.faults.get(method, [])
            if not pending:
                return None
            pending[0].times -= 1
            return pending.pop(0) if pending[0].times <= 0 else pending[0]

    def link(self, key: str) -> str | None:
        """Return what a signed link leads to, if it has not expired."""
        with self._lock:
            path, until = self._links.get(key, ("", 0.0))
        return path if until > time.monotonic() else None

    def _sign(self, path: str) -> str:
        path = quote(path)
        key = f"{len(self._links)}{abs(hash(path)):x}"
        with self._lock:
            self._links[key] = (path, time.monotonic() + self.habits.link_life_s)
        return f"{self.endpoint}/storage/{path}?X-Goog-Signature={key}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: KaggleService

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True  # head and body go in two pieces, and the second would wait for 40 ms

    def do_POST(self) -> None:
        """Answer a call."""
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = re.fullmatch(r"(?:/api)?/v1/([\w.]+)/(\w+)", self.path)
        method = found[2] if found else ""
        line = self._line(method, raw)
        if found is None or method not in SERVICES.get(found[1], ()):
            self._send(404, b"no such route", line)
            return
        fault = self.server.service.take_fault(method)
        if fault is not None and fault.kind in ("cut", "status", "broken", "silent", "answer"):
            self._fail(fault, line)
            return
        if fault is not None and fault.kind == "late":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.server.service.is_going.wait(fault.wait_s)
        status, answer = self._answer(method, raw, line)
        if fault is not None:
            self._fail(fault, line)
        else:
            self._send(status, json.dumps(answer).encode(), line, "application/json")

    def do_GET(self) -> None:
        """Answer with a session's log, or with the file of a link."""
        parts = urlsplit(self.path)
        found = re.fullmatch(r"(?:/api)?/v1/kernels/logs/stream/([^/]+)/([^/]+)", parts.path)
        method = "log" if found else "link"
        line = self._line(method, b"")
        fault = self.server.service.take_fault(method)
        if fault is not None and fault.kind != "half":
            self._fail(fault, line)
        elif found:
            label = parse_qs(parts.query).get("versionLabel", [None])[0]
            self._log(found[1], found[2], label, line)
        else:
            self._file(line, is_half=fault is not None)

    def do_PUT(self) -> None:
        """Take the bytes of a blob, or say how many have come."""
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        line = self._line("upload", b"")
        fault = self.server.service.take_fault("upload")
        path = self._linked()
        blob = self.server.service.state.blobs.get((path or "").removeprefix("upload/"))
        if fault is not None:
            self._fail(fault, line)
            return
        if blob is None:
            self._send(404, b"<Error><Code>NoSuchUpload</Code></Error>", line, "application/xml")
            return
        part = re.fullmatch(r"bytes (\d+)-\d+/\d+", self.headers.get("Content-Range", ""))
        is_question = self.headers.get("Content-Range", "").startswith("bytes */")
        if not is_question:
            with blob.path.open("r+b" if part and blob.path.exists() else "wb") as file:
                file.seek(int(part[1]) if part else 0)
                file.write(raw)
        size = blob.path.stat().st_size if blob.path.exists() else 0
        if size == blob.size and not (is_question and not blob.path.exists()):
            self._send(200, b"", line)
        else:
            self._send(308, b"", line, headers={"Range": f"bytes=0-{size - 1}"} if size else {})

    def _line(self, method: str, raw: bytes) -> dict[str, Any]:
        """Begin this call's line of the ledger. It has every header but the authentication's value."""
        headers = {key: value for key, value in self.headers.items() if key.lower() != "authorization"}
        kind = self.headers.get("Authorization", "").partition(" ")[0].lower()
        route = {"method": method, "path": urlsplit(self.path).path, "query": urlsplit(self.path).query}
        text = raw.decode(errors="replace")
        return {
            "time": time.time(),
            **route,
            "auth": kind,
            "headers": headers,
            "raw": text,
            "accepted": False,
        }

    def _answer(self, method: str, raw: bytes, line: dict[str, Any]) -> tuple[int, Body]:
        state = self.server.service.state
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
        try:
            body = json.loads(raw or b"{}")
            line["body"] = body
            del line["raw"]  # it says the same
            who = None if method in ANONYMOUS else self._who()
            # To delete a kernel waits for its session, which never needs this lock.
            with state.lock:
                before = len(state.pushes)
                answer = getattr(state, name)(who, body)
                line["push"] = state.pushes[-1] if len(state.pushes) > before else None
            line["accepted"] = not answer.get("error")
            return 200, answer
        except RefusalError as error:
            return error.status, {"code": error.status, "message": error.message}
        except ValueError:
            return 400, {"code": 400, "message": "the body is not JSON"}

    def _who(self) -> Account:
        """Return the caller. Raises RefusalError."""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        for account in self.server.service.state.accounts:
            basic = base64.b64encode(f"{account.name}:{account.key}".encode()).decode()
            if (kind, value) in (("Basic", basic), ("Bearer", account.token)) and account.is_active:
                return account
        raise RefusalError(401, "Unauthenticated")

    def _linked(self) -> str | None:
        key = parse_qs(urlsplit(self.path).query).get("X-Goog-Signature", [""])[0]
        path = self.server.service.link(key)
        return path if path and urlsplit(self.path).path == f"/storage/{path}" else None

    def _file(self, line: dict[str, Any], *, is_half: bool) -> None:
        """Send the file of a signed link; it needs no authentication."""
        path = self._linked()
        if path is None:
            self._send(400, b"<Error><Code>ExpiredToken</Code></Error>", line, "application/xml")
            return
        _, owner, slug, number, name = unquote(path).split("/", 4)
        state = self.server.service.state
        kernel = state.kernels.get(f"{owner}/{slug}")
        if kernel is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", line, "application/xml")
            return
        file = kernel.versions[int(number) - 1].session.folder / "working" / name
        line["accepted"] = True
        self._begin(
            200,
            line,
            "application/octet-stream",
            file.stat().st_size,
            {"Last-Modified": formatdate(usegmt=True)},
        )
        if is_half:
            self.wfile.write(file.read_bytes()[: file.stat().st_size // 2])
            self.close_connection = True
            return
        with file.open("rb") as source:
            shutil.copyfileobj(source, self.wfile, 1 << 20)

    def _log(self, owner: str, slug: str, label: str | None, line: dict[str, Any]) -> None:
        """Stream a running session's log from its beginning; send an ended one's as it is kept."""
        try:
            session = self.server.service.state.session(self._who(), owner, slug, label)
        except RefusalError as error:
            said = {"code": error.status, "message": error.message}
            self._send(error.status, json.dumps(said).encode(), line, "application/json")
            return
        line["accepted"] = True
        if session.status == "QUEUED":  # what the service says then is unverified
            self._send(404, b'{"code": 404, "message": "no log yet"}', line, "application/json")
        elif session.is_over:
            self._send(200, persisted_log(session).encode(), line, "application/json")
        else:
            self._begin(200, line, "text/event-stream", None)
            self._stream(session)

    def _stream(self, session: Session) -> None:
        service = self.server.service
        limit = service.cut_streams_after_s
        until = None if limit is None else time.monotonic() + limit
        for text in _events(session, service.is_going, until):
            data = f"data: {text}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            if text == END_OF_LOG:
                self.wfile.write(b"0\r\n\r\n")
                return
        self.close_connection = True
        self.wfile.write(b"0\r\n\r\n" if service.is_cut_clean else b"40\r\ndata: {")

    def _fail(self, fault: Fault, line: dict[str, Any]) -> None:
        line["fault"] = fault.kind
        if fault.kind in ("lost", "cut", "late"):
            self.server.service.record(line)
            self.close_connection = True
        elif fault.kind in ("silent", "held"):
            self.server.service.record(line)
            self.server.service.is_going.wait(fault.wait_s)
            self.close_connection = True
        elif fault.kind == "broken":
            self._send(200, b'{"ref": "/code/al', line, "application/json", fault.headers)
        elif fault.kind == "answer":
            self._send(200, json.dumps(fault.values).encode(), line, "application/json", fault.headers)
        else:
            told = {"code": fault.status, "message": fault.message} if fault.message else fault.values
            kind = "application/json" if told else "text/html; charset=utf-8"
            body = json.dumps(told).encode() if told else HTML
            self._send(fault.status, body, line, kind, fault.headers)

    def _send(
        self,
        status: int,
        body: bytes,
        line: dict[str, Any],
        kind: str = "text/plain",
        headers: dict[str, str] | None = None,
    ) -> None:
        self._begin(status, line, kind, len(body), headers)
        self.wfile.write(body)

    def _begin(
        self,
        status: int,
        line: dict[str, Any],
        kind: str,
        size: int | None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Record the call, before its answer can be read, and send the answer's head."""
        self.server.service.record({**line, "status": status})
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header(
            *(("Transfer-Encoding", "chunked") if size is None else ("Content-Length", str(size)))
        )
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the moment by the service's clock."""
        return formatdate((timestamp or time.time()) + self.server.service.habits.skew_s, usegmt=True)

    def log_message(self, *words: object) -> None:
        """Keep quiet: the ledger is the log."""


def _events(session: Session, is_going: threading.Event, until: float | None) -> Iterator[str]:
    """Yield a session's log from its beginning, and END_OF_LOG at its end; nothing more after `until`."""
    count = 0
    while not is_going.is_set() and (until is None or time.monotonic() < until):
        with session.changed:
            session.changed.wait_for(lambda seen=count: len(session.log) > seen or session.is_over, 0.05)
            fresh, is_over = session.log[count:], session.is_over
        for line in fresh:
            if until is not None and time.monotonic() >= until:
                return
            yield json.dumps(line.json())
        count += len(fresh)
        if is_over and count == len(session.log):
            yield END_OF_LOG
            return
