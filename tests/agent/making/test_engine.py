"""What a host makes of its engine's answers, and of its silence; a socket of the test's own stands for the engine."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from launcher.agent.liveness.docker import docker_container, docker_engine, docker_liveness
from launcher.agent.liveness.liveness import ALIVE, COMING_BACK, GONE, SILENT, is_known, probe_of
from launcher.agent.liveness.run_state import states_of
from launcher.agent.liveness.slurm.slurm_programs import cluster_name
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.system import process

ID = "0101-x-%04d"


class FakeEngine:
    """A socket that counts who calls and what is asked, and answers with its containers, or never."""

    def __init__(self, path):
        self.path, self.calls, self.asked = str(path), 0, []
        self.containers = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._open = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def access(self):
        """How it is reached."""
        return {"name": "docker", "socket": self.path}

    def hold(self, run, state, label=None):
        """Answer from now on, with a container of a run's name, and of its label unless that is another's."""
        self.containers = {**(self.containers or {}), run: (state, label or run)}

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self.calls += 1
                self._open.append(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with contextlib.suppress(OSError):
            while request := connection.recv(65536).decode():
                path = request.split(" ")[1]
                self.asked.append(path)
                if self.containers is None:
                    continue
                status, body = self._list(path) if path.startswith("/containers/json?") else self._one(path)
                data = json.dumps(body).encode()
                connection.sendall(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data
                )

    def _list(self, path):
        words = parse_qs(urlsplit(path).query)
        assert (words["all"], json.loads(words["filters"][0])) == (["1"], {"label": ["launcher.run"]})
        return 200, [
            {"Names": [f"/launch-{run}"], "Labels": {"launcher.run": label}, "State": state["Status"]}
            for run, (state, label) in self.containers.items()
        ]

    def _one(self, path):
        run = path.split("/containers/launch-")[1].split("/")[0]
        if run not in self.containers:
            return 404, {"message": "No such container"}
        state, label = self.containers[run]
        return 200, {"State": state, "Config": {"Labels": {"launcher.run": label}}}

    def close(self):
        """Hang up on everybody."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def fake(monkeypatch):
    """An engine that never answers, until it holds a container."""
    monkeypatch.setattr(docker_engine, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(docker_liveness, "PROBE", docker_liveness.DockerLiveness())
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        engine = FakeEngine(Path(folder) / "s")
        yield engine
        engine.close()


def container(access, run):
    return docker_liveness.PROBE.containers_of(access, [run])[run]


def test_a_silent_engine_is_asked_once_for_all_its_runs(fake):
    """Eight runs cost one deadline, not eight; whoever acts on an answer asks anew."""
    for number in range(8):
        with pytest.raises(docker_container.EngineSilentError, match="timed out"):
            container(fake.access, ID % number)
    assert fake.calls == 1
    fake.hold(ID % 0, {"Status": "exited", "ExitCode": 137})
    docker_liveness.PROBE.forget(Run(ID % 0))
    found = container(fake.access, ID % 0)
    assert (found["status"], found["exit"]) == ("exited", 137)


def test_another_engines_silence_is_not_this_ones(fake):
    """A host may have several."""
    with pytest.raises(docker_container.EngineSilentError):
        container({"socket": f"{fake.path}-none"}, ID % 0)
    fake.hold(ID % 0, {"Status": "running"})
    assert container(fake.access, ID % 0)["status"] == "running"


def test_a_container_that_is_not_labelled_as_the_run_s_is_none_of_it(fake):
    """Anybody may take its name; one question or a list, the label decides."""
    fake.hold(ID % 0, {"Status": "running"}, label="1121-another-aaaa")
    assert container(fake.access, ID % 0) is None
    docker_liveness.PROBE.forget(Run(ID % 0))
    assert docker_liveness.PROBE.containers_of(fake.access, [ID % 0, ID % 1]) == {ID % 0: None, ID % 1: None}


@pytest.fixture
def runs(fake, tmp_path):
    """Eight runs whose agents are gone, in containers of the engine."""
    found = []
    for number in range(8):
        run = Run(str(tmp_path / "runs" / (ID % number)))
        run.make()
        folder = run.new_folder()
        runtime = {"kind": "docker", "engine": fake.access}
        write_durably(folder.attempt, json.dumps({"place_id": process.host_id(), "runtime": runtime}))
        folder.write_state("running", attempt=1)
        folder.release()
        found.append(run)
    return found


def test_many_runs_are_one_question_and_one_more_for_each_container_that_is_down(fake, runs):
    """A list does not say how a container ended; those that run, or are removed, need no second question."""
    for run, status in zip(runs, ("running", "paused", "restarting", "exited", "created"), strict=False):
        fake.hold(run.id, {"Status": status, "ExitCode": 3})
    states = states_of(runs)
    assert [(states[run.id]["state"], states[run.id]["fate"]) for run in runs] == [
        ("resuming", ALIVE),
        ("resuming", ALIVE),
        ("resuming", COMING_BACK),
        *[("interrupted", GONE)] * 5,
    ]
    ends = [states[run.id].get("evidence") for run in runs]
    assert [end["container"]["status"] for end in ends[3:5]] == ["exited", "created"]
    assert ends[3]["container"]["exit"] == 3
    assert ends[:3] == [None] * 3
    assert ends[5:] == [{"container": "removed"}] * 3
    assert (fake.calls, len(fake.asked)) == (1, 3)


def test_many_runs_of_a_silent_engine_are_in_doubt_after_one_timeout(fake, runs):
    """In doubt is not interrupted: nobody may start them a second time."""
    states = states_of(runs)
    assert {(state["state"], state["fate"]) for state in states.values()} == {("resuming", SILENT)}
    assert states[runs[0].id]["evidence"] == {"engine": "does not answer: timed out"}
    assert fake.calls == 1


def test_a_runtime_that_this_agent_does_not_know_is_silent(runs):
    """A newer agent made the record; what became of the run is not for this one to say. No module but a LivenessProbe counts."""
    run = runs[0]
    record = {"place_id": process.host_id(), "runtime": {"kind": "pbs"}}
    write_durably(run.folder(1).attempt, json.dumps(record))
    state = states_of([run])[run.id]
    assert (state["state"], state["fate"]) == ("resuming", SILENT)
    assert state["evidence"] == {"runtime": "'pbs' is not known to this agent"}
    assert probe_of("pbs").left(run) == "its runtime 'pbs' is not known to this agent"
    known = [
        kind
        for kind in ("native", "docker", "slurm", "pbs", "fate", "..main", "Native", "")
        if is_known(kind)
    ]
    assert known == ["native", "docker", "slurm"]


def test_a_program_that_cannot_be_killed_holds_nobody_up(fake, tmp_path, monkeypatch):
    """By sudo it is root's, and may hang for ever."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(docker_liveness, "ENDING_S", 0.1, raising=False)
    started = []

    class Unkillable(docker_engine.subprocess.Popen):
        def kill(self):
            started.append(self)
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(docker_engine.subprocess, "Popen", Unkillable)
    with pytest.raises(docker_container.EngineSilentError, match="timed out"):
        container({"program": str(program)}, ID % 0)
    os.kill(started[0].pid, 9)
    started[0].wait()


AGES = """
import json, sys
from launcher.agent.host import leftovers
leftovers.sweep(sys.argv[1], dry_run=False)
found = leftovers.ages(sys.argv[1], sys.argv[2:])
print(json.dumps([sorted(found), sorted(name.replace("launcher.agent.", "") for name in sys.modules)]))
"""


def test_a_sweep_of_ended_runs_loads_nothing_to_ask_an_engine_or_a_cluster_with(tmp_path):
    """Each launch waits for its sweep, and a first question may be long in coming."""
    run = Run(str(tmp_path / "runs" / (ID % 0)))
    run.make()
    record = {"kind": "prepare", "host_id": process.host_id(), "runtime": {"kind": "docker"}}
    write_durably(run.prepared_record, json.dumps(record))
    folder = run.new_folder()
    folder.write_state("succeeded")
    folder.release()
    words = [sys.executable, "-c", AGES, str(tmp_path), run.id]
    ended, loaded = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    assert ended == [run.id]
    assert "liveness.docker.docker_liveness" in loaded
    unneeded = {"http.client", "liveness.docker.docker_engine"} | (
        {"liveness.slurm.slurm_liveness"} if not cluster_name() else set()
    )
    assert not unneeded & set(loaded)
