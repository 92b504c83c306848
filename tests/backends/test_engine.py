"""The engine's client against an engine that records what it is asked, and answers what a test wants."""

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends.machine.docker.engine import DockerEngine
from launcher.backends.machine.docker.images import image_supplies
from launcher.errors import EngineError
from launcher.transport.local import LocalLink
from launcher.values.reported.engine_access import EngineAccess

ANSWERS = {
    "/version": {"ApiVersion": "1.41"},
    "/info": {"MemTotal": 8 << 30, "InitBinary": "docker-init"},
    "/build": {"stream": "done"},
    "/images/create": {"status": "done"},
    "/containers/json": [],
    "/images/json": [],
}


class Server(ThreadingMixIn, UnixStreamServer):
    """An engine's socket."""

    daemon_threads = True


@pytest.fixture
def engine(tmp_path):
    """Return (asked, answers, open): what it was asked, what it answers by path, and a client of it."""
    asked, answers = [], dict(ANSWERS)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while int(self.rfile.readline(), 16):
                    self.rfile.readline()
                self.rfile.readline()
            asked.append((self.path, dict(self.headers), body))
            path = self.path.split("?")[0]
            name = next((one for one in answers if path.endswith(one)), None)
            said = json.dumps(answers[name] if name else {"message": "no such thing"}).encode()
            self.send_response(200 if name else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = answer  # noqa: N815 - http.server's names

        def log_message(self, *_words):
            """Say nothing."""

    path = tmp_path / "engine.sock"
    server = Server(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    opened = []

    class Host:
        """As much of a desk as an engine needs."""

        host = "lab"

        def open_socket(self, where):
            link = LocalLink.__new__(LocalLink)
            link._name = self.host
            return link.open_socket(where)

        def by_hand(self, command):
            return f"ssh lab {command}"

    def connect():
        opened.append(DockerEngine(Host(), EngineAccess(name="docker", socket=str(path))))
        return opened[-1]

    yield asked, answers, connect
    for one in opened:
        one.close()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_nothing_of_this_machine_s_docker_settings_reaches_a_host(engine, tmp_path, monkeypatch):
    """No login, no proxy, no header and no netrc: they are for other machines."""
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    login = base64.b64encode(b"me:LAPTOPSECRET").decode()
    (home / ".docker" / "config.json").write_text(
        json.dumps(
            {
                "auths": {"registry.example.org": {"auth": login}},
                "HttpHeaders": {"X-Laptop": "HEADERSECRET"},
                "proxies": {"default": {"httpProxy": "http://me:PROXYSECRET@proxy:1"}},
            }
        )
    )
    (home / ".netrc").write_text("default login me password NETRCSECRET\n")
    (home / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DOCKER_CONFIG", str(home / ".docker"))
    asked, _, connect = engine
    client = connect()
    list(client.build(b"", tag="x:1", buildargs={}, labels={}, network_mode="default"))
    list(client.pull("registry.example.org/team/train:v1"))
    client.facts()
    text = repr(asked)
    assert "/build" in text
    assert "/images/create" in text
    for found in ("SECRET", login, "X-Laptop", "Authorization"):
        assert found not in text
    encoded = [value for _, headers, _ in asked for name, value in headers.items() if "Registry" in name]
    assert not any(b"SECRET" in base64.urlsafe_b64decode(value + "==") for value in encoded)


def ask_everything(connect):
    client = connect()
    client.facts()
    client.find("x", "root")
    client.containers()
    image_supplies(client)
    list(client.build(b"", tag="x:1"))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/version", {"ApiVersion": "x.y"}),
        ("/version", {"ApiVersion": 1}),
        ("/version", []),
        ("/version", {"ApiVersion": "1.24"}),
        ("/info", []),
        ("/info", {"MemTotal": "lots"}),
        ("/info", {"Rootless": "perhaps"}),
        ("/containers/launch-x/json", {"Id": "0" * 64}),
        ("/containers/launch-x/json", {"Id": "../../x", "State": {"Status": "running"}, "Config": {}}),
        ("/containers/launch-x/json", {"Id": "0" * 64, "State": {"Status": "running"}, "Config": {"Labels": {}}}),
        ("/containers/json", [{"Names": None}]),
        ("/containers/json", {"a": 1}),
        ("/images/json", [{"RepoTags": 1}]),
        ("/images/json", 7),
        ("/build", [1]),
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_told_in_a_sentence(engine, path, answer):
    """Never a traceback: what a host says is data."""
    _, answers, connect = engine
    answers[path] = answer
    with pytest.raises(EngineError) as told:
        ask_everything(connect)
    assert "lab" in str(told.value)
    assert "\n  " in str(told.value), "the next command"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["Id", "State", "Status", "Config", "Labels", "RepoTags", "Size", "Created", "Names"]), inner, max_size=4), max_leaves=8))  # fmt: skip
def test_no_shape_of_an_answer_is_more_than_an_error(said):
    """Whatever the JSON, it is read as far as we need it, or is an EngineError."""
    engine = DockerEngine.__new__(DockerEngine)
    engine.host, engine.way = "lab", EngineAccess(name="docker", socket="/x")

    class Host:
        def by_hand(self, command):
            return command

    class Client:
        def inspect_container(self, _name):
            return said

        def containers(self, **_options):
            return said

        def images(self, **_options):
            return said

    engine._client, engine.api = Host(), Client()
    for ask in (lambda: engine.find("x", "y"), engine.containers, lambda: image_supplies(engine)):
        with contextlib.suppress(EngineError):
            ask()


def test_an_image_is_ours_by_its_name_and_its_label(engine):
    """What somebody built from ours inherits the label, and what somebody called like ours lacks it."""
    _, answers, connect = engine
    digest = "0123456789ab" + "c" * 52
    labels = {"launcher.image": digest, "launcher.root": "h:/r"}
    answers["/images/json"] = [
        {"Id": "sha256:1", "RepoTags": ["aaa/mine:1", "launcher/cpu:0123456789ab"], "Labels": labels},
        {"Id": "sha256:2", "RepoTags": ["team/train:v1"], "Labels": labels},
        {"Id": "sha256:3", "RepoTags": ["launcher/cpu:ffffffffffff"], "Labels": labels},
        {"Id": "sha256:4", "RepoTags": None, "Labels": labels},
    ]
    assert [one.name for one in image_supplies(connect(), "h:/r")] == ["launcher/cpu:0123456789ab"]
    assert image_supplies(connect(), "h:/other") == []
