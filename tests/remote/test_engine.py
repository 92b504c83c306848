"""What a host makes of its engine's answers, and of its silence; a socket of the test's own stands for the engine."""

import contextlib
import json
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from launcher.remote.fate import docker

ID = "0101-x-%04d"


class FakeEngine:
    """A socket that counts who calls, and answers with a container's state, or never."""

    def __init__(self, path):
        self.path, self.calls, self.state, self.run = str(path), 0, None, None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._open = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def way(self):
        """How it is reached."""
        return {"name": "docker", "socket": self.path}

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self.calls += 1
                self._open.append(connection)
                if self.state is not None:
                    asked = connection.recv(65536).decode()
                    run = self.run or asked.split("/containers/launch-")[1].split("/")[0]
                    config = {"Labels": {"launcher.run": run}}
                    body = json.dumps({"State": self.state, "Config": config}).encode()
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def close(self):
        """Hang up on everybody."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def fake(monkeypatch):
    """An engine that never answers, until its `state` is set."""
    monkeypatch.setattr(docker, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(docker, "_kept", {})
    monkeypatch.setattr(docker, "_silent", {}, raising=False)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        one = FakeEngine(Path(folder) / "s")
        yield one
        one.close()


def test_a_silent_engine_is_asked_once_for_all_its_runs(fake):
    """Eight runs cost one deadline, not eight; whoever acts on an answer asks anew."""
    for number in range(8):
        with pytest.raises(docker.SilentError, match="timed out"):
            docker.container_of({"engine": fake.way}, ID % number)
    assert fake.calls == 1
    fake.state = {"Status": "exited", "ExitCode": 137}
    docker.forget(ID % 0)
    found = docker.container_of({"engine": fake.way}, ID % 0)
    assert (found["status"], found["exit"]) == ("exited", 137)


def test_another_engines_silence_is_not_this_ones(fake):
    """A host may have several."""
    with pytest.raises(docker.SilentError):
        docker.container_of({"engine": {"socket": f"{fake.path}-none"}}, ID % 0)
    fake.state = {"Status": "running"}
    assert docker.container_of({"engine": fake.way}, ID % 0)["status"] == "running"


def test_a_container_that_is_not_labelled_as_the_run_s_is_none_of_it(fake):
    """Anybody may take its name."""
    fake.state, fake.run = {"Status": "running"}, "1121-another-aaaa"
    assert docker.container_of({"engine": fake.way}, ID % 0) is None


def test_a_program_that_cannot_be_killed_holds_nobody_up(fake, tmp_path, monkeypatch):
    """By sudo it is root's, and may hang for ever."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(docker, "ENDING_S", 0.1, raising=False)
    started = []

    class Unkillable(docker.subprocess.Popen):
        def kill(self):
            started.append(self)
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(docker.subprocess, "Popen", Unkillable)
    with pytest.raises(docker.SilentError, match="timed out"):
        docker.container_of({"engine": {"program": str(program)}}, ID % 0)
    os.kill(started[0].pid, 9)
    started[0].wait()
