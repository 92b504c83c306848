"""A stand-in for Lambda Cloud's service, over HTTP on loopback, with rates, prices and capacity, and faults on demand.

`lambda_state.py` has the calls, `lambda_schema.py` the shapes that requests and answers must have. Here are routes,
authentication, faults, and two witnesses for tests: a line for each call, and what the instances have cost. An instance has
no machine behind it unless `state.on_start` and `state.on_end` give it one.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from testbed.lambda_state import Account, Clock, Instance, RefusalError, State

HTML = b"<html><head><title>Error</title></head><body><h1>Something went wrong</h1></body></html>"
ROUTES = (
    ("GET", r"instance-types", "types"),
    ("POST", r"instance-operations/launch", "launch"),
    ("POST", r"instance-operations/terminate", "terminate"),
    ("GET", r"instances", "instances"),
    ("GET", r"instances/([^/]+)", "instance"),
    ("POST", r"instances/([^/]+)", "rename"),
    ("GET", r"ssh-keys", "keys"),
    ("POST", r"ssh-keys", "add_key"),
    ("DELETE", r"ssh-keys/([^/]+)", "delete_key"),
    ("GET", r"file-systems", "file_systems"),
    ("GET", r"images", "images"),
    ("GET", r"firewall-rulesets", "firewalls"),
)


@dataclass
class Fault:
    """What goes wrong with the next calls of a kind.

    `kind` is `status` (with HTML, or the code and message as JSON if there is a `code`), `lost` (accepted, then cut off
    without an answer), `cut` (cut off before it is accepted), `late` (cut off, and accepted `wait_s` later by the clock),
    `accepted` (accepted, then the status), `answer` (a good answer with this `data` instead), `broken` (a good status with
    JSON that is none) or `silent` (no answer until the service ends).
    """

    kind: str
    status: int = 500
    code: str = ""
    message: str = "no"
    data: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 60.0
    times: int = 1


class LambdaService:
    """The stand-in. `state.habits`, and faults, may be changed while it serves."""

    def __init__(self, clock: Clock) -> None:
        """Prepare it, at a clock."""
        self.state = State(clock)
        self.calls: list[dict[str, Any]] = []
        # Called before a call is accepted, which it is not if that returns True, and before its answer is sent.
        self.before: Callable[[dict[str, Any]], bool | None] = lambda _line: None
        self.after: Callable[[dict[str, Any]], None] = lambda _line: None
        self.is_going = threading.Event()
        self.date = ""  # the text of every Date, in place of the time
        self._faults: dict[str, list[Fault]] = {}
        self._held: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def account(self, name: str = "alice", key: str = "") -> Account:
        """Add an account, which has an SSH key `ours`."""
        account = Account(name, key or f"secret_{name}_0123456789abcdef")
        account.keys["key0"] = {"id": "key0", "name": "ours", "public_key": "ssh-ed25519 AAAA ours"}
        self.state.accounts.append(account)
        return account

    @property
    def base(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/v1"

    def fail(self, call: str, kind: str, **values: Any) -> None:
        """Let the next calls of a kind go wrong, see Fault."""
        self._faults.setdefault(call, []).append(Fault(kind, **values))

    @contextmanager
    def holding(self, call: str) -> Iterator[None]:
        """Take no call of a kind for the block, and answer none; those that came are taken after it."""
        held = self._held[call] = threading.Event()
        try:
            yield
        finally:
            del self._held[call]
            held.set()

    def wait_for(self, call: str) -> None:
        """Wait until a call of a kind is to be taken."""
        if (held := self._held.get(call)) is not None:
            held.wait()

    def of(self, call: str) -> list[dict[str, Any]]:
        """Return the lines of one kind of call."""
        with self._lock:
            return [line for line in self.calls if line["call"] == call]

    def terminated(self) -> set[str]:
        """Return the ids for which an end was ever asked."""
        return {one for line in self.of("terminate") for one in (line["body"] or {}).get("instance_ids", [])}

    def alive(self) -> list[Instance]:
        """Return the instances that nobody has asked to end."""
        return self.state.alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; every answer that it gave must have had its shape."""
        self.is_going.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if kind is None:
            assert not self.state.wrong_answers, self.state.wrong_answers

    def record(self, line: dict[str, Any]) -> None:
        """Add a call to the witness."""
        with self._lock:
            self.calls.append(line)

    def take_fault(self, call: str) -> Fault | None:
        """Return the fault of this call, if it is to have one."""
        with self._lock:
            pending = self._faults.get(call, [])
            if not pending:
                return None
            pending[0].times -= 1
            return pending.pop(0) if pending[0].times <= 0 else pending[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    service: LambdaService

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a call."""
        self._handle()

    def do_POST(self) -> None:
        """Answer a call."""
        self._handle()

    def do_DELETE(self) -> None:
        """Answer a call."""
        self._handle()

    def _handle(self) -> None:
        service = self.server.service
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call, item = self._route()
        kind = self.headers.get("Authorization", "").partition(" ")[0].lower()
        line = {
            "call": call,
            "time": service.state.clock.now(),
            "path": self.path,
            "port": self.client_address[1],
            "auth": kind,
            "accepted": False,
        }
        try:
            line["body"] = json.loads(raw) if raw else None
        except ValueError:
            line["body"] = None
        service.record(line)
        try:
            who = self._who()
            service.wait_for(call)
            is_early = service.state.count(who, call)  # as it arrives: what `before` does may move the clock
            if service.before(line) is True:
                self.close_connection = True
                return
            fault = service.take_fault(call)
            if is_early and service.state.habits.enforces_rates:
                raise RefusalError(429, "global/rate-limited", "slow down")  # the code is unverified
            if not call:
                raise RefusalError(404, "global/not-found", "no such route")
            if fault is not None and self._fails_before(fault, who, line):
                return
            with service.state.lock:
                data = service.state.answer(call, who, line["body"], item)
            line["accepted"] = True
            service.after(line)
            if fault is None or not self._fails_after(fault):
                self._send(200, {"data": data})
        except RefusalError as error:
            self._send(error.status, error.body)

    def _route(self) -> tuple[str, str]:
        path = urlsplit(self.path).path
        for method, pattern, call in ROUTES:
            found = re.fullmatch(rf"/api/v1/{pattern}", path)
            if found and method == self.command:
                return call, found[1] if found.groups() else ""
        return "", ""

    def _who(self) -> Account:
        """Return the caller. Raises RefusalError."""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        for account in self.server.service.state.accounts:
            basic = base64.b64encode(f"{account.key}:".encode()).decode()
            if (kind, value) in (("Bearer", account.key), ("Basic", basic)):
                if not account.is_active:
                    raise RefusalError(403, "global/account-inactive", "Your account is inactive.")
                return account
        raise RefusalError(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")

    def _fails_before(self, fault: Fault, who: Account, line: dict[str, Any]) -> bool:
        """Let a call go wrong that is not accepted; return whether it was such a fault."""
        state = self.server.service.state
        if fault.kind == "late":
            state.late.append((state.clock.now() + fault.wait_s, who, line["body"]))
        if fault.kind in ("cut", "late"):
            self.close_connection = True
        elif fault.kind == "silent":
            self.server.service.is_going.wait(60)
            self.close_connection = True
        elif fault.kind == "broken":
            self._send(200, b'{"data": {"instance_i')
        elif fault.kind == "answer":
            self._send(200, {"data": fault.data})
        elif fault.kind == "status":
            self._refuse(fault)
        else:
            return False
        return True

    def _fails_after(self, fault: Fault) -> bool:
        """Let an accepted call go wrong; return whether it was such a fault."""
        if fault.kind == "lost":
            self.close_connection = True
        elif fault.kind == "accepted":
            self._refuse(fault)
        else:
            return False
        return True

    def _refuse(self, fault: Fault) -> None:
        error = {"error": {"code": fault.code, "message": fault.message}}
        self._send(fault.status, error if fault.code else HTML, fault.headers)

    def _send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8" if body is HTML else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, _moment: float | None = None) -> str:
        """Return the `Date` of an answer, by the service's own clock."""
        return self.server.service.date or formatdate(self.server.service.state.clock.now(), usegmt=True)

    def log_message(self, *words: object) -> None:
        """Keep quiet: `calls` is the log."""
