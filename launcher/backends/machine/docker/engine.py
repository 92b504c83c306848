"""A client of a host's container engine, over the host's shared connection. The only user of docker-py."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import shlex
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import docker
import docker.errors
import requests
import urllib3
import urllib3.connection
from docker.transport.basehttpadapter import BaseHTTPAdapter
from docker.utils.proxy import ProxyConfig
from pydantic import AfterValidator, Field

from launcher.backends.machine.docker.container import (
    LABEL_ROOT,
    LABEL_RUN,
    Container,
    ContainerView,
    EngineFacts,
    name_of,
)
from launcher.base import untrusted_json
from launcher.base.text import printable
from launcher.errors import EngineError, RefusedStreamError
from launcher.transport.channel import Socket
from launcher.transport.client.host_client import HostClient
from launcher.values.base import Record
from launcher.values.reported.engine_access import EngineAccess

TIMEOUT_S = 60
ASK_S = 300
REMOVAL_S = 10.0
POLL_S = 0.02
OLDEST_API = (1, 40)
"""Engine 19.03, the first with device requests. Source: Docker's API history."""
LISTING_API = (1, 50)
"""Engine 28.2, the first that lists its CDI devices. Source: Docker's API history."""
NO_SUCH_CARD = ("could not select device driver", "unresolvable CDI devices")
"""The engine's words for a request of devices that it cannot fulfil: no driver, no such CDI device."""
MAX_LOG_BYTES = 64 * 1024
EMPTY_TAR = bytes(1024)
MAX_HEAD_BYTES = 16 * 1024
STDOUT = 1
BESIDE = ("Mounts", "Binds", "NetworkMode", "Init", "CapDrop", "SecurityOpt", "ShmSize", "GroupAdd")
"""The settings of a run's container that another one beside it gets. Podman shows the mounts as `Binds`.

It also shows limits and a runtime in words that it does not take back.
"""
NOTHING = ContainerView()
USUAL = (None, "/var/run/docker.sock", "/run/docker.sock")
"""The sockets that a docker program tries by default."""

logging.getLogger("urllib3").addHandler(logging.NullHandler())  # EngineError reports lost connections


class DockerEngine:
    """The engine reached by `way`. Call `close` at the end.

    Every failure is an EngineError with the next step.
    """

    def __init__(self, client: HostClient, way: EngineAccess) -> None:
        """Connect by the first way that works, and agree on the API version. Raises EngineError."""
        self.host = client.host
        self.way = way
        self._client = client
        self._dial = self._chosen_dial()
        self.api = _Client(self._dial)
        with self._errors():
            version = _Version.model_validate(self.api.version(api_version=False))
        if (version.numbers or (0, 0)) < OLDEST_API:
            self.close()
            oldest = ".".join(map(str, OLDEST_API))
            why = f"speaks API {version.api_version}; launch needs {oldest} (engine 19.03) or newer"
            mend = f"update it, or   launch --host {self.host} --runtime native"
            raise EngineError(self.host, f"{self.host}: its {way.name} {printable(why)}\n  {mend}")
        self.api.speak(version.api_version)
        self._lists_devices = (version.numbers or (0, 0)) >= LISTING_API

    def close(self) -> None:
        """Close the connection."""
        self.api.close()

    @property
    def _variable(self) -> str:
        """The variable with the address of the engine for its program."""
        return "CONTAINER_HOST" if self.way.name == "podman" else "DOCKER_HOST"

    def _chosen_dial(self) -> Callable[[], Socket]:
        """Return a function that opens a stream to the engine: by its socket if possible, else by its program.

        A socket costs 1.5 ms and no session of sshd; `docker system dial-stdio` costs 100 ms and one session.
        """
        way = self.way
        refusal = ""
        if way.socket is not None and not way.sudo:
            path = way.socket
            try:
                kept = [self._client.open_socket(path)]
            except RefusedStreamError as error:
                refusal = f"\n  {error}"
            else:
                return lambda: kept.pop() if kept else self._client.open_socket(path)
        if way.program is None:
            words = f"{way.name}'s socket cannot be reached, and no program {way.name} was found there"
            mend = f"install it on the host, or   launch --host {self.host} --runtime native"
            raise EngineError(self.host, f"{self.host}: {words}{refusal}\n  {mend}")
        program = [
            *(["sudo", "-n"] if way.sudo else []),
            *(["env", f"{self._variable}=unix://{way.socket}"] if way.socket else []),
            *(way.program, "system", "dial-stdio"),
        ]
        return lambda: self._client.open_program(program)

    def facts(self) -> EngineFacts:
        """Return the engine's facts."""
        with self._errors():
            info = _Info.model_validate(self.api.info())
        is_unlisted = bool(info.cdi_folders) and not self._lists_devices
        return EngineFacts(
            is_rootless=info.is_rootless
            or any("name=rootless" in one for one in info.security_options or ()),
            has_init=bool(info.init_binary),
            memory_bytes=info.memory_bytes,
            runtimes=tuple(info.runtimes or ()),
            cdi_devices=None if is_unlisted else tuple(one.id for one in info.devices or ()),
            is_podman=self.way.name == "podman",
        )

    # containers

    def create(self, name: str, config: Mapping[str, Any]) -> Container:
        """Create a container and return it. Raises EngineError."""
        with self._errors():
            made = _Created.model_validate(self.api.create_container_from_config(dict(config), name))
        return Container(made.id, "created", None)

    def find(self, run: str, root: str) -> Container | None:
        """Return the container of a run below a root; `None` if the engine has none.

        Its labels prove that it belongs to the run. Raises EngineError if another container has its name.
        """
        name = name_of(run)
        try:
            with self._errors():
                container = _Inspected.model_validate(self.api.inspect_container(name))
        except _NotFoundError:
            return None
        labels = container.config.labels or {}
        if (labels.get(LABEL_RUN), labels.get(LABEL_ROOT)) != (run, root):
            mend = f"look at it   {self.by_hand('inspect', name)}"
            raise EngineError(self.host, f"{self.host}: the container {name} is not of run {run}\n  {mend}")
        return Container(container.id, container.state.status, container.state.exit_code)

    def start(self, container: Container) -> None:
        """Start a container. A running one is accepted. Raises EngineError."""
        with self._errors():
            self.api.start(container.id)

    def stop(self, container: Container, timeout_s: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL. It has stopped when this returns.

        A missing one is accepted.
        """
        with contextlib.suppress(_NotFoundError), self._errors():
            self.api.stop(container.id, timeout=timeout_s)

    def remove(self, container: Container) -> None:
        """Remove a stopped container. A missing one is accepted."""
        with contextlib.suppress(_NotFoundError), self._errors():
            self.api.remove_container(container.id, v=True)

    def log(self, container: Container) -> str:
        """Return the last lines of a container's log, safe for a terminal."""
        with contextlib.suppress(_NotFoundError), self._errors():
            said: bytes = self.api.logs(container.id, tail=20)
            lines = said[-MAX_LOG_BYTES:].decode(errors="replace").splitlines()
            return printable(" ".join(dict.fromkeys(lines))).strip()  # each start prints the same lines
        return ""

    def containers(self) -> list[ListedContainer]:
        """Return all containers, running or not."""
        with self._errors():
            return _Containers.model_validate({"found": self.api.containers(all=True)}).found

    # streams to a program in a container

    def open_exec(self, container: Container, words: Sequence[str]) -> Socket:
        """Start a program in a running container; return the stream of its standard input and output.

        Raises EngineError.
        """
        with self._errors():
            number = self.api.exec_create(container.id, list(words), stdin=True)["Id"]
            return self._upgraded(f"/exec/{number}/start", b'{"Detach":false,"Tty":false}')

    def open_beside(self, container: Container, words: Sequence[str]) -> Socket:
        """Start a program in a new container like this one but without its cards.

        It is removed when the program ends. Return the stream of its standard input and output. Raises
        EngineError.
        """
        with self._errors():
            there = self.api.inspect_container(container.id)
            config, host = there["Config"], there["HostConfig"]
            beside = {
                **{key: config[key] for key in ("Image", "User", "Env", "WorkingDir", "Labels")},
                "Entrypoint": list(words),
                "Cmd": [],
                "OpenStdin": True,
                "StdinOnce": True,
                "HostConfig": {
                    **{key: host[key] for key in BESIDE if key in host},
                    "RestartPolicy": {"Name": "no"},
                    "AutoRemove": True,
                },
            }
            number = self.api.create_container_from_config(beside)["Id"]
            stream = self._upgraded(f"/containers/{number}/attach?stream=1&stdin=1&stdout=1&stderr=1", b"")
            self.api.start(number)
        return stream

    def _upgraded(self, path: str, body: bytes) -> Socket:
        """Send a request whose connection becomes the stream. Raises OSError if the engine refuses."""
        request = (
            f"POST /v{self.api.api_version}{path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        stream = self._dial()
        try:
            stream.settimeout(TIMEOUT_S)
            stream.sendall(request.encode() + body)
            head = b""
            while not head.endswith(b"\r\n\r\n") and len(head) < MAX_HEAD_BYTES:
                piece = stream.recv(1)  # must not read past the header
                if not piece:
                    break
                head += piece
            if not head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
                raise OSError(f"no stream: {head.splitlines()[:1]}")
        except BaseException:
            stream.close()
            raise
        return _Demultiplexed(stream)

    # images

    def image_id(self, name: str) -> str | None:
        """Return the id of a named image; None if the engine does not have it."""
        try:
            with self._errors():
                return _Identified.model_validate(self.api.inspect_image(name)).id
        except _NotFoundError:
            return None

    def ask(
        self, image: str, words: Sequence[str], labels: Mapping[str, str], seen: ContainerView = NOTHING
    ) -> str:
        """Run a program in a new container without network or cards, and return its output.

        The container is then removed. Only the parts of the host in `seen` are visible. If this client
        dies before the container starts, the `labels` identify the leftover container. Raises EngineError.
        """
        config = {
            "Image": image,
            "Labels": dict(labels),
            "Entrypoint": list(words),
            "Cmd": [],
            "WorkingDir": "/",
            "User": seen.user,
            # An engine whose default runtime is NVIDIA's would give the container its cards, or refuse to start
            # it if the driver is old.
            "Env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DISABLE_REQUIRE=1", *seen.variables],
            "NetworkDisabled": True,
            "HostConfig": {
                "Mounts": [*seen.mounts],
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "AutoRemove": True,
            },
        }
        with self._errors():
            number = self.api.create_container_from_config(config)["Id"]
            stream = self._upgraded(f"/containers/{number}/attach?stream=1&stdout=1&stderr=1", b"")
            try:
                stream.settimeout(ASK_S)
                self.api.start(number)
                said = b""
                while piece := stream.recv(1 << 16):
                    said = (said + piece)[-MAX_LOG_BYTES:]
                self._await_removal(number)
            except BaseException:
                with contextlib.suppress(docker.errors.APIError):  # AutoRemove misses one that never started
                    self.api.remove_container(number, v=True, force=True)
                raise
            finally:
                stream.close()
        return said.decode(errors="replace")

    def _await_removal(self, number: str) -> None:
        """Wait up to REMOVAL_S for a container that removes itself. Until then it keeps its image in use."""
        deadline = time.monotonic() + REMOVAL_S
        while time.monotonic() < deadline:
            try:
                with self._errors():
                    self.api.inspect_container(number)
            except _NotFoundError:
                return
            time.sleep(POLL_S)

    def hands_on(self, cards: Mapping[str, object], labels: Mapping[str, str]) -> bool:
        """Return whether the engine can fulfil a request for devices, by the start of a container of an empty image.

        The start always fails, because the image has no program: what matters is the reason. Container and image are
        removed; if this client dies before that, the `labels` identify them. Raises EngineError.
        """
        changes = [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
        with self._errors():
            loaded = self.api.import_image_from_data(EMPTY_TAR, changes=changes)
            image = _Progress.model_validate(untrusted_json.decode(loaded.splitlines()[-1])).status
            config = {
                "Image": image,
                "Labels": dict(labels),
                "Entrypoint": ["/none"],
                "NetworkDisabled": True,
                "HostConfig": {"NetworkMode": "none", "DeviceRequests": [cards]},
            }
            try:
                number = self.api.create_container_from_config(config)["Id"]
                try:
                    self.api.start(number)
                except docker.errors.APIError as error:
                    return not any(words in str(error.explanation) for words in NO_SUCH_CARD)
                finally:
                    self.api.remove_container(number, v=True, force=True)
            finally:
                self.api.remove_image(image)
        return True

    def build(self, context: bytes, **options: Any) -> Iterator[_Progress]:
        """Build an image from a tar with the classic builder, and yield the builder's output.

        Closing the connection cancels the build. Raises EngineError.
        """
        with self._errors():
            for said in self.api.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                decode=True,
                rm=True,
                forcerm=True,
                timeout=None,
                use_config_proxy=False,
                **options,
            ):
                yield _Progress.model_validate(said)

    def pull(self, name: str) -> Iterator[_Progress]:
        """Pull an image without this client's logins, and yield the engine's output. Raises EngineError."""
        repository, tag = docker.utils.parse_repository_tag(name)
        with self._errors():
            for said in self.api.pull(
                repository, tag=tag or "latest", stream=True, decode=True, auth_config={}
            ):
                yield _Progress.model_validate(said)

    def images(self, label: str) -> list[ListedImage]:
        """Return the images with a label. An image built from such an image has it too."""
        with self._errors():
            return _Images.model_validate({"found": self.api.images(filters={"label": label})}).found

    def last_step(self, image_id: str) -> str:
        """Return the instruction that made the last layer of an image."""
        with self._errors():
            return _History.model_validate({"steps": self.api.history(image_id)}).steps[0].instruction

    def remove_image(self, name: str) -> bool:
        """Remove an image. Return whether it is gone: a container or another image may need it.

        Raises EngineError.
        """
        try:
            with self._errors():
                self.api.remove_image(name)
        except _NotFoundError:
            pass
        except _NeededError:
            return False
        return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate all errors of docker-py into EngineError."""
        try:
            yield
        except docker.errors.NotFound as error:
            raise _NotFoundError(self.host, self._said(error)) from error
        except docker.errors.APIError as error:
            is_needed = error.response is not None and error.status_code == HTTPStatus.CONFLICT
            # Podman answers 500 if another request or process removes the container at the same moment.
            is_removed = "no such container" in str(error.explanation)
            kind = _NotFoundError if is_removed else _NeededError if is_needed else EngineError
            raise kind(self.host, self._said(error)) from error
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            words = f"{self.host}: its {self.way.name} does not answer: {printable(str(error))[:300]}"
            raise EngineError(self.host, f"{words}\n  look   {self.by_hand('info')}") from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            words = f"{self.host}: its {self.way.name} gives an answer that cannot be read: {printable(str(error))[:300]}"
            raise EngineError(self.host, f"{words}\n  look   {self.by_hand('version')}") from error

    def by_hand(self, *words: str) -> str:
        """Return a command line that the user can type to ask this engine."""
        is_named = self.way.name == "docker" and self.way.socket not in USUAL
        settings = ["env", f"DOCKER_HOST=unix://{self.way.socket}"] if is_named else []
        sudo = ["sudo"] if self.way.sudo else []
        return self._client.by_hand(shlex.join([*sudo, *settings, self.way.name, *words]))

    def _said(self, error: docker.errors.APIError) -> str:
        return f"{self.host}: its {self.way.name} says: {printable(str(error.explanation or error))[:1000]}"


class _Version(Record):
    api_version: str = Field(alias="ApiVersion")

    @property
    def numbers(self) -> tuple[int, int] | None:
        """The version as numbers; `None` if it cannot be parsed."""
        found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", self.api_version)
        return (int(found[1]), int(found[2])) if found else None


class _Device(Record):
    id: str = Field(alias="ID")


class _Info(Record):
    security_options: list[str] | None = Field(alias="SecurityOptions", default=None)
    is_rootless: bool = Field(alias="Rootless", default=False)
    """Podman's; Docker has a security option."""
    init_binary: str | None = Field(alias="InitBinary", default=None)
    memory_bytes: int = Field(alias="MemTotal", default=0)
    runtimes: dict[str, Any] | None = Field(alias="Runtimes", default=None)
    cdi_folders: list[str] | None = Field(alias="CDISpecDirs", default=None)
    devices: list[_Device] | None = Field(alias="DiscoveredDevices", default=None)


def _short(names: list[str] | None) -> list[str] | None:
    """Return an image's names as Docker shows them: Podman writes the registry of a build's tag before it."""
    return names and [name.removeprefix("docker.io/") for name in names]


class _Identified(Record):
    id: str = Field(alias="Id", pattern=r"^sha256:[0-9a-f]{64}$")


class _Labelled(Record):
    labels: dict[str, str] | None = Field(alias="Labels", default=None)


class _State(Record):
    status: str = Field(alias="Status")
    exit_code: int | None = Field(alias="ExitCode", default=None)


class _Created(Record):
    id: str = Field(alias="Id", pattern=r"^[0-9a-f]{12,64}$")


class _Inspected(Record):
    id: str = Field(alias="Id", pattern=r"^[0-9a-f]{12,64}$")
    state: _State = Field(alias="State")
    config: _Labelled = Field(alias="Config")


class ListedContainer(_Labelled):
    """A container in a list. `created` is in seconds since 1970; the labels include those of its image."""

    id: str = Field(alias="Id", pattern=r"^[0-9a-f]{12,64}$")
    image: str = Field(alias="ImageID", default="")
    status: str = Field(alias="State", default="")
    created: float = Field(alias="Created", default=0.0)


class _Containers(Record):
    found: list[ListedContainer]


class ListedImage(_Labelled):
    """An image in a list: its id, names, size in bytes, time of creation (seconds since 1970), and labels."""

    id: str = Field(alias="Id")
    names: Annotated[list[str] | None, AfterValidator(_short)] = Field(alias="RepoTags", default=None)
    bytes: int = Field(alias="Size", default=0)
    created: float = Field(alias="Created", default=0.0)


class _Images(Record):
    found: list[ListedImage]


class _Step(Record):
    instruction: str = Field("", alias="CreatedBy")


class _History(Record):
    steps: list[_Step]
    """The latest first."""


class _Progress(Record):
    """A line of output of a build or a pull."""

    stream: str = ""
    error: str = ""
    status: str = ""
    id: str = ""
    progress: str = ""


class _NotFoundError(EngineError):
    """Raised if the engine does not have the container or image."""


class _NeededError(EngineError):
    """Raised if the engine refuses to remove an object in use, or to use a name twice."""


class _Demultiplexed:
    """The standard output of a program, from a stream that also carries its standard error, which is dropped.

    Engine API, "Attach to a container": each frame has one byte for the stream, three zero bytes, and four
    bytes for the length.
    """

    def __init__(self, stream: Socket) -> None:
        self._stream = stream
        self._left = 0
        self.settimeout = stream.settimeout
        self.sendall = stream.sendall
        self.shutdown = stream.shutdown
        self.close = stream.close

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, or empty bytes at the end of the stream."""
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

    def __init__(self, dial: Callable[[], Socket]) -> None:
        super().__init__("http://engine:1", version=".".join(map(str, OLDEST_API)), timeout=TIMEOUT_S)
        self.mount("http+docker://", _Adapter(dial))
        self.base_url = "http+docker://engine"
        # Logins, proxies, headers and netrc of this machine are not for a host's engine.
        self.trust_env = False
        self._general_configs: dict[str, Any] = {}
        self._proxy_configs = ProxyConfig()
        self.headers.clear()

    def speak(self, version: str) -> None:
        """Use this version of the API from now on."""
        self._version = version

    def _stream_helper(self, response: requests.Response, decode: bool = False) -> Iterator[Any]:
        """Close the response even if it was not read to its end, which cancels a build."""
        try:
            yield from super()._stream_helper(response, decode)
        finally:
            response.close()

    def _set_auth_headers(self, headers: dict[str, str]) -> None:
        """Add no logins to a build: docker-py would read those of this machine."""


class _Adapter(BaseHTTPAdapter):  # type: ignore[misc] # likewise
    """An adapter with one connection pool for the one engine, like docker-py's own adapters."""

    def __init__(self, dial: Callable[[], Socket]) -> None:
        self._pool = _Pool(dial)
        super().__init__()

    def get_connection(self, url: str, proxies: object = None) -> _Pool:
        """Return the pool, whatever the URL."""
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: object) -> str:
        """Return the path only, because no proxy is used."""
        return request.path_url

    def close(self) -> None:
        """Close all pooled streams."""
        self._pool.close()


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, dial: Callable[[], Socket]) -> None:
        super().__init__("engine", timeout=TIMEOUT_S, maxsize=4)
        self._dial = dial

    def _new_conn(self) -> _Connection:
        return _Connection(self._dial)


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, dial: Callable[[], Socket]) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._dial = dial

    def connect(self) -> None:
        """Open the stream."""
        self.sock = self._dial()
        self.sock.settimeout(TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open.

        An SSH channel has `closed`; asking for its descriptor would create a pipe. A socket is checked by
        urllib3.
        """
        closed = getattr(self.sock, "closed", None)
        return super().is_connected if closed is None else not closed
