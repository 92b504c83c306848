"""A start that is called failed: what is left of its run on its host, by what lies on the disk."""

import contextlib
import socketserver
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from testbed.toy import recorded_run

from launcher.agent.liveness.docker import docker_liveness
from launcher.agent.serving import serve
from launcher.agent.serving.session import ClientSession
from launcher.backends.machine.docker.container import Container
from launcher.backends.machine.docker_runtime import Docker
from launcher.errors import EngineError
from launcher.values.record import RuntimeRecord
from launcher.values.reported.engine_access import RunLocation

RUN = "261128-train-aaaaaa"


class NoContainer(socketserver.StreamRequestHandler):
    """An engine that has none, by HTTP."""

    def handle(self):
        """Answer a request."""
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")


@pytest.fixture
def handed_over(tmp_path, monkeypatch):
    """Make a session that has handed a run of a kind over, which what keeps such runs has none of."""
    monkeypatch.setattr(docker_liveness, "PROBE", docker_liveness.DockerLiveness())
    path = str(tmp_path / "engine.sock")
    with contextlib.ExitStack() as stack:

        def make(kind):
            runtime = {"kind": kind, "engine": {"name": "docker", "socket": path}}
            run = recorded_run(tmp_path, RUN, "preparing", runtime=runtime)
            session = ClientSession(str(tmp_path), None)
            session.handed_over[RUN] = run.folder(1)
            return session, run

        server = stack.enter_context(socketserver.UnixStreamServer(path, NoContainer))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield make


def is_taken_back(session):
    """What the host tells a client, which goes away then."""
    taken = serve.answer(session, "take_back", {"run": RUN}, b"").values["taken"]
    session.clear_away()
    return taken


@pytest.mark.parametrize("kind", ["native", "docker", "slurm", "kaggle"])
def test_what_has_the_folder_of_an_attempt_is_a_run(handed_over, kind):
    """Though nothing keeps it any more: it may have ended meanwhile, and what it made is there alone."""
    session, run = handed_over(kind)
    attempt = run.new_folder()
    attempt.write_state("succeeded")
    weights = Path(run.artifacts, "weights")
    weights.parent.mkdir()
    weights.write_text("all of it")
    assert not is_taken_back(session)
    assert weights.read_text() == "all of it"


@pytest.mark.parametrize("kind", ["native", "docker", "slurm", "kaggle"])
def test_what_never_began_is_taken_back(handed_over, kind):
    """Nothing is left of it."""
    session, run = handed_over(kind)
    assert is_taken_back(session)
    assert not Path(run.path).exists()


class LostAnswer:
    """An engine whose answer to the start of a container is lost; the container has a status."""

    def __init__(self, status):
        self.removed = []
        self._found = None if status is None else Container("c1", status, None)

    def find(self, _run, _root):
        """Return the container."""
        return self._found

    def start(self, _container):
        """Lose the answer."""
        raise EngineError("lab", "lab: its docker does not answer")

    def remove(self, container):
        """Note it."""
        self.removed.append(container.id)


@pytest.mark.parametrize(("status", "begins"), [("running", True), ("created", False), (None, False)])
def test_a_container_that_was_started_without_an_answer_is_not_removed(status, begins):
    """It trains: the launch goes on. One that was not started goes, with the engine's words."""
    desk = SimpleNamespace(host="lab", runs=SimpleNamespace(await_agent=lambda _run, _wait_s: True))
    runtime = Docker(desk, RuntimeRecord(kind="docker"))
    runtime.engine = LostAnswer(status)
    place = RunLocation(path="/r", home="/h", agent="/a", host_id="h", root="h:/", user="u", uid=1, gid=1)
    with contextlib.nullcontext() if begins else pytest.raises(EngineError, match="does not answer"):
        runtime._begin(RUN, place, Container("c1", "created", None))
    assert runtime.engine.removed == ([] if begins else ["c1"])
