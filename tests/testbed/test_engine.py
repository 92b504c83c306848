"""The testbed's engine itself, judged by Debian's docker client: what tests of container runs stand on."""

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from testbed.client import until
from testbed.engine import BASE
from testbed.machine import CLIENT
from testbed.missing_part import MissingPartError
from testbed.wheels import WheelServer

pytestmark = pytest.mark.testbed

BUILDKIT = {"DOCKER_BUILDKIT": "1"}
WHEEL = "idna"

DOCKERFILE = f"""\
FROM {BASE}
RUN python3 -m venv --without-pip /env
RUN --mount=type=secret,id=index pip --python /env/bin/python install --index-url "$(cat /run/secrets/index)" \
    --trusted-host {CLIENT} {WHEEL}
"""


@pytest.fixture
def container(engine):
    """Start a container of the base image; it is removed afterwards."""
    started = []

    def start(*words):
        started.append(engine.docker("run", "--detach", *words).strip())
        return started[-1]

    yield start
    for name in started:
        engine.docker("rm", "--force", name)


def test_its_python_is_the_one_the_wheels_are_for(engine):
    """The base image has Python 3.11, pip and venv, and an init binary is at hand for `--init`."""
    assert engine.docker("run", "--rm", "--init", BASE, "python3", "-V").startswith("Python 3.11")
    assert engine.docker("run", "--rm", "--init", BASE, "cat", "/proc/1/comm") == "docker-init\n"


@pytest.mark.long
def test_a_build_installs_from_the_index_by_a_secret(engine, wheels, tmp_path):
    """BuildKit takes a wheel from a password's index over the bridge network; history shows no password."""
    server = WheelServer(wheels.folder, user="company", password="hunter2")
    server.up()
    try:
        with pytest.raises(HTTPError, match="401"):
            urlopen(server.index_url)
        (tmp_path / "Dockerfile").write_text(DOCKERFILE)
        secret = tmp_path / "index"
        secret.write_text(server.index_url_with_password)
        words = ("build", "--secret", f"id=index,src={secret}", "--tag", "idna", str(tmp_path))
        engine.docker(*words, env=BUILDKIT)
    finally:
        server.down()
    assert engine.docker("run", "--rm", "idna", "/env/bin/python", "-c", "import idna; print(idna.__name__)")
    assert (f"/simple/{WHEEL}/", 200) in server.requests
    assert "hunter2" not in engine.docker("history", "--no-trunc", "idna")


def test_members_of_the_group_get_in_and_nobody_else(engine_machine):
    """ada, bob and root reach the engine by ssh; eve is refused."""
    for user in ("ada", "bob", "root"):
        assert BASE.split(":")[0] in engine_machine.ssh("docker", "images", user=user)
    with pytest.raises(AssertionError, match="permission denied"):
        engine_machine.ssh("docker", "images", user="eve")


@pytest.mark.long
@pytest.mark.parametrize("has_containerd", [False, True])
def test_a_container_comes_back_after_the_engine_is_killed(engine, container, has_containerd):
    """A policy brings a container back when the daemon that watched it was killed."""
    name = container("--restart", "on-failure:5", "--init", BASE, "sleep", "infinity")
    engine.kill(has_containerd=has_containerd)
    assert not engine.is_running("dockerd")
    engine.start()
    until(lambda: _state(engine, name) == "running", "the container to come back")


@pytest.mark.long
def test_a_container_comes_back_after_a_reboot(engine, engine_machine, container):
    """The machine dies and boots: its engine starts, and with it the container that has a policy, alone."""
    kept = container("--restart", "on-failure:5", "--init", BASE, "sleep", "infinity")
    lost = container("--init", BASE, "sleep", "infinity")
    engine_machine.kill()
    engine_machine.up()
    engine.wait()
    until(lambda: _state(engine, kept) == "running", "the container to come back")
    assert _state(engine, lost) == "exited"


@pytest.mark.long
def test_a_graceful_stop_ends_the_containers_first(engine, container):
    """SIGTERM of the daemon ends its containers; they are down after the next start unless a policy says otherwise."""
    name = container("--init", BASE, "sleep", "infinity")
    engine.stop_gracefully()
    engine.start()
    assert _state(engine, name) == "exited"


def test_a_lock_is_one_inside_and_outside(engine, engine_machine, container):
    """flock on a bind-mounted file refuses the host while a container holds it, and is free when that is killed."""
    path = engine_machine.homes / "ada" / "lock"
    path.touch()
    mount = f"/home/ada:{engine_machine.homes}"
    name = container("-v", mount, BASE, "flock", f"{engine_machine.homes}/lock", "sleep", "infinity")
    until(lambda: not _is_free(engine_machine), "the container to take the lock")
    engine.docker("kill", name)
    until(lambda: _is_free(engine_machine), "the lock to be free")


def test_the_users_client_can_be_another_or_none(engine, engine_machine):
    """A machine without a docker client, and one with a newer client that has no buildx."""
    assert engine_machine.ssh("docker", "--version").startswith("Docker version 20.10")
    try:
        engine.use_client("none")
        with pytest.raises(AssertionError, match="127"):
            engine_machine.ssh("docker", "--version")
        assert engine.docker("ps")
        try:
            engine.use_client("plain")
        except MissingPartError as error:
            pytest.skip(str(error))
        assert not engine_machine.ssh("docker", "--version").startswith("Docker version 20.10")
    finally:
        engine.use_client("debian")


@pytest.mark.long
def test_a_user_may_have_an_engine_of_her_own(rootless_engine, engine_machine, wheels):
    """rae, in no group, runs a container that is hers alone and reaches the index."""
    code = f"from urllib.request import urlopen; print(urlopen('{wheels.index_url}').status)"
    assert engine_machine.ssh("docker", "run", "--rm", BASE, "python3", "-c", code, user="rae") == "200\n"
    assert "rootless" in engine_machine.ssh("docker", "info", user="rae")
    assert "rootless" not in engine_machine.ssh("docker", "info", user="ada")


def _state(engine, name):
    return engine.docker("inspect", "--format", "{{.State.Status}}", name).strip()


def _is_free(machine):
    said = machine.ssh("sh", "-c", "flock -n ~/lock true && echo free || echo taken")
    return said == "free\n"
