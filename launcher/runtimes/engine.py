"""A host's container engine, over the host's one connection. The only user of docker-py."""

from __future__ import annotations

import contextlib
import io
import logging
import shlex
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import docker
import docker.errors
import requests
import urllib3
import urllib3.connection
from docker.transport.basehttpadapter import BaseHTTPAdapter

from launcher.errors import EngineError, RefusedStreamError
from launcher.hosts import Agent
from launcher.hosts.agent import Stream, printable
from launcher.runtimes.container import EngineFacts
from launcher.spec.container import EngineWay

TIMEOUT_S = 60
OLDEST_API = (1, 40)
"""Engine 19.03, the first with device requests. Docker's API history."""
MOST_LOG_BYTES = 64 * 1024
MOST_HEAD_BYTES = 16 * 1024
STDOUT = 1

logging.getLogger("urllib3").addHandler(logging.NullHandler())  # a lost link is ours to tell


class Engine:
    """The engine that `way` leads to. `close` it; every failure is an EngineError that says what to do."""

    def __init__(self, agent: Agent, way: EngineWay) -> None:
        """Dial it, by the first way that is open, and agree on the API's version. Raises EngineError."""
        self.host = agent.host
        self.way = way
        self._agent = agent
        self._dial = self._chosen_dial()
        with self._errors():
            self.api = _Client(self._dial)
        if tuple(int(part) for part in self.api.api_version.split(".")) < OLDEST_API:
            oldest = ".".join(map(str, OLDEST_API))
            raise EngineError(
                self.host,
                f"{self.host}: its {way.name} speaks API {self.api.api_version}; launch needs {oldest} (engine 19.03) or newer\n"
                f"  update it, or   launch --host {self.host} --runtime native",
            )

    def close(self) -> None:
        """Hang up."""
        self.api.close()

    def _chosen_dial(self) -> Callable[[], Stream]:
        """Return how a stream to the engine is opened: its socket over the connection, else its program.

        A socket costs 1.5 ms and none of sshd's sessions; `docker system dial-stdio` 100 ms and one of them.
        """
        way = self.way
        refusal = ""
        if way.socket is not None and not way.sudo:
            path = way.socket
            try:
                kept = [self._agent.open_socket(path)]
            except RefusedStreamError as error:
                refusal = f"\n  {error}"
            else:
                return lambda: kept.pop() if kept else self._agent.open_socket(path)
        if way.program is None:
            words = f"{way.name}'s socket cannot be reached, and no program {way.name} was found there"
            mend = f"install it there, or   launch --host {self.host} --runtime native"
            raise EngineError(self.host, f"{self.host}: {words}{refusal}\n  {mend}")
        program = [
            *(["sudo", "-n"] if way.sudo else []),
            *(["env", f"DOCKER_HOST=unix://{way.socket}"] if way.socket else []),
            *(way.program, "system", "dial-stdio"),
        ]
        return lambda: self._agent.open_program(program)

    def facts(self) -> EngineFacts:
        """Ask the engine what it is and what it can hand on."""
        with self._errors():
            told = self.api.info()
        security = [str(one) for one in told.get("SecurityOptions") or ()]
        return EngineFacts(
            is_rootless=any("name=rootless" in one for one in security),
            is_podman=self.way.name == "podman",
            has_init=bool(told.get("InitBinary")) or self.way.name == "podman",
            memory_bytes=int(told.get("MemTotal") or 0),
            runtimes=tuple(str(one) for one in told.get("Runtimes") or ()),
            has_cdi=bool(told.get("CDISpecDirs")),
        )

    # containers

    def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Create a container. Raises EngineError."""
        with self._errors():
            self.api.create_container_from_config(dict(config), name)

    def start(self, name: str) -> None:
        """Start a container. One that runs is fine. Raises EngineError."""
        with self._errors():
            self.api.start(name)

    def state(self, name: str) -> dict[str, Any] | None:
        """Return the engine's word on a container, None where there is none of this name."""
        try:
            with self._errors():
                state: dict[str, Any] = self.api.inspect_container(name)["State"]
        except _NotFoundError:
            return None
        return state

    def stop(self, name: str, timeout_s: int) -> None:
        """End a container: SIGTERM, then SIGKILL; it is down when this returns. None of this name is fine."""
        with contextlib.suppress(_NotFoundError), self._errors():
            self.api.stop(name, timeout=timeout_s)

    def remove(self, name: str) -> None:
        """Remove a container that does not run. None of this name is fine."""
        with contextlib.suppress(_NotFoundError), self._errors():
            self.api.remove_container(name, v=True)

    def log(self, name: str) -> str:
        """Return the last words of a container's own log, fit for a terminal."""
        with contextlib.suppress(_NotFoundError), self._errors():
            said: bytes = self.api.logs(name, tail=20)
            lines = said[-MOST_LOG_BYTES:].decode(errors="replace").splitlines()
            return printable(" ".join(dict.fromkeys(lines))).strip()  # each start says the same again
        return ""

    def containers(self, **labels: str | None) -> list[dict[str, Any]]:
        """Return the containers, running or not, that carry all of these labels (None: of any value)."""
        wanted = [name if value is None else f"{name}={value}" for name, value in labels.items()]
        with self._errors():
            found: list[dict[str, Any]] = self.api.containers(all=True, filters={"label": wanted})
        return found

    # streams to a program inside

    def open_exec(self, name: str, words: Sequence[str]) -> Stream:
        """Start a program in a running container; return the stream of its standard input and output.

        Raises EngineError.
        """
        with self._errors():
            number = self.api.exec_create(name, list(words), stdin=True)["Id"]
            return self._upgraded(f"/exec/{number}/start", b'{"Detach":false,"Tty":false}')

    def open_beside(self, name: str, words: Sequence[str]) -> Stream:
        """Start a program in a new container that is as the one of this name was, and goes with the program.

        Return the stream of its standard input and output. Raises EngineError.
        """
        with self._errors():
            there = self.api.inspect_container(name)
            config, host = there["Config"], there["HostConfig"]
            beside = {
                **{key: config[key] for key in ("Image", "User", "Env", "WorkingDir")},
                "Entrypoint": list(words),
                "Cmd": [],
                "OpenStdin": True,
                "StdinOnce": True,
                "HostConfig": {**host, "RestartPolicy": {"Name": "no"}, "AutoRemove": True},
            }
            number = self.api.create_container_from_config(beside)["Id"]
            stream = self._upgraded(f"/containers/{number}/attach?stream=1&stdin=1&stdout=1&stderr=1", b"")
            self.api.start(number)
        return stream

    def _upgraded(self, path: str, body: bytes) -> Stream:
        """Ask for a path whose connection becomes the stream. Raises OSError where the engine does not let it."""
        stream = self._dial()
        stream.settimeout(TIMEOUT_S)
        stream.sendall(
            f"POST /v{self.api.api_version}{path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = b""
        while not head.endswith(b"\r\n\r\n") and len(head) < MOST_HEAD_BYTES:
            piece = stream.recv(1)  # not a byte of what comes behind
            if not piece:
                break
            head += piece
        if not head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
            stream.close()
            raise OSError(f"no stream: {head.splitlines()[:1]}")
        return _Demultiplexed(stream)

    # images

    def has_image(self, name: str) -> bool:
        """Whether the engine has an image of this name."""
        try:
            with self._errors():
                self.api.inspect_image(name)
        except _NotFoundError:
            return False
        return True

    def build(self, context: bytes, **options: Any) -> Iterator[dict[str, Any]]:
        """Build an image with the classic builder from a tar; yield what it says. Hanging up cancels. Raises EngineError."""
        with self._errors():
            yield from self.api.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                decode=True,
                rm=True,
                forcerm=True,
                timeout=None,
                **options,
            )

    def pull(self, name: str) -> Iterator[dict[str, Any]]:
        """Pull an image; yield what the engine says. Raises EngineError."""
        repository, tag = docker.utils.parse_repository_tag(name)
        with self._errors():
            yield from self.api.pull(repository, tag=tag or "latest", stream=True, decode=True)

    def images(self, label: str) -> list[dict[str, Any]]:
        """Return the images that carry a label."""
        with self._errors():
            found: list[dict[str, Any]] = self.api.images(filters={"label": label})
        return found

    def remove_image(self, name: str) -> None:
        """Remove an image that no container uses. None of this name is fine. Raises EngineError."""
        with contextlib.suppress(_NotFoundError), self._errors():
            self.api.remove_image(name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """The one place where docker-py's words become ours."""
        try:
            yield
        except docker.errors.NotFound as error:
            raise _NotFoundError(self.host, self._said(error)) from error
        except docker.errors.APIError as error:
            raise EngineError(self.host, self._said(error)) from error
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            look = shlex.join(["sudo"] * self.way.sudo + [self.way.name, "info"])
            raise EngineError(
                self.host,
                f"{self.host}: its {self.way.name} does not answer: {printable(str(error))[:300]}\n"
                f"  look there   ssh {self.host} {look}",
            ) from error

    def _said(self, error: docker.errors.APIError) -> str:
        return f"{self.host}: its {self.way.name} says: {printable(str(error.explanation or error))[:1000]}"


class _NotFoundError(EngineError):
    """Raised when the engine knows no such container or image."""


class _Demultiplexed:
    """A stream out of which the standard output is read; what the program says beside it is left out.

    Engine API, "Attach to a container": frames of a byte for the stream, three of nothing, and a length of four.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0
        self.settimeout = stream.settimeout
        self.sendall = stream.sendall
        self.close = stream.close

    def recv(self, size: int, /) -> bytes:
        """Return some bytes; none at the end of the stream."""
        while self._left == 0:
            head = self._exactly(8)
            if len(head) < 8:
                return b""
            kind, length = struct.unpack(">BxxxI", head)
            if kind == STDOUT:
                self._left = length
            else:
                self._exactly(length)
        piece = self._stream.recv(min(size, self._left))
        self._left -= len(piece)
        return piece

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (piece := self._stream.recv(size - len(data))):
            data += piece
        return data


class _Client(docker.APIClient):  # type: ignore[misc] # docker-py has no types
    """docker-py's client over streams that `dial` opens."""

    def __init__(self, dial: Callable[[], Stream]) -> None:
        super().__init__("http://engine:1", version=".".join(map(str, OLDEST_API)), timeout=TIMEOUT_S)
        self.mount("http+docker://", _Adapter(dial))
        self.base_url = "http+docker://engine"
        self._version = self._retrieve_server_version()


class _Adapter(BaseHTTPAdapter):  # type: ignore[misc] # likewise
    """One pool for the one engine, as docker-py's own adapters have."""

    def __init__(self, dial: Callable[[], Stream]) -> None:
        self._pool = _Pool(dial)
        super().__init__()

    def get_connection(self, url: str, proxies: object = None) -> _Pool:
        """Return the pool, whatever the URL."""
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: object) -> str:
        """Return the path alone: no proxy stands between."""
        return request.path_url

    def close(self) -> None:
        """Close every kept stream."""
        self._pool.close()


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, dial: Callable[[], Stream]) -> None:
        super().__init__("engine", timeout=TIMEOUT_S, maxsize=4)
        self._dial = dial

    def _new_conn(self) -> _Connection:
        return _Connection(self._dial)


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, dial: Callable[[], Stream]) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._dial = dial

    def connect(self) -> None:
        """Dial."""
        self.sock = self._dial()
        self.sock.settimeout(TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open. urllib3 would ask its descriptor, which an SSH channel makes of a pipe each time."""
        return self.sock is not None and not getattr(self.sock, "closed", False)
