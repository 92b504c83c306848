"""The ways to a host's engine: its socket over SSH, its program, sudo; and what is said where none leads there."""

import json
import socketserver
import subprocess
import threading

import pytest
from testbed.client import missing, until
from testbed.engine import BASE

pytestmark = pytest.mark.testbed

JOB = f'name = "own"\ncommand = ["sh", "-c", "id -u; touch ../artifacts/x"]\nimage = "{BASE}"\n'


@pytest.fixture
def box(client, engine):
    """The machine with the engine; its containers and their runs are gone afterwards."""
    (client.project / "job.toml").write_text(JOB)
    yield engine
    for name in engine.docker("ps", "-aq").split():
        engine.docker("rm", "-f", name)
    for user in engine.machine.users:
        engine.machine.ssh("rm", "-rf", ".launch/runs", user=user)


def launch(client, box, *words, **table):
    (client.project / "launch.toml").write_text(box.machine.table("dock", **{"runtime": "docker", **table}))
    return client.run("--host", "dock", "--job", "./job.toml", *words)


def streams(engine):
    """The engine's programs that carry somebody's stream, by ps."""
    return engine.machine.enter("pgrep", "-af", "system dial-stdio", check=False).splitlines()


def goes_well(client, box, user, *words, **table):
    """Launch, attach, stop and remove as a user, in a container, by docker's word; return the launch's output."""
    done = launch(client, box, *words, user=user, **table)
    assert done.returncode == 0, done.stdout + done.stderr
    (container,) = box.docker("ps", "-aq").split()
    run = next(path.name for path in client.runs.glob("[0-9]*"))
    assert json.loads(box.docker("inspect", container))[0]["Name"] == f"/launch-{run}"
    uid = box.machine.ssh("id", "-u", user=user).strip()
    assert (client.runs / run / "0002" / "log.txt").read_text() == f"{uid}\n"
    box.docker("kill", container, check=False)
    assert client.run("exec", run, "--", "sh", "-c", "exit 3").returncode == 3
    client.ok("rm", "--force", run)
    until(
        lambda: box.docker("ps", "-aq") == "", "the end of every container"
    )  # Podman removes them a moment later
    until(lambda: not streams(box), "the end of every stream")
    return done.stdout


@pytest.mark.long
def test_where_sshd_opens_no_sockets_the_engine_s_program_leads_there(client, box):
    """`AllowStreamLocalForwarding no`: docker system dial-stdio does, for launch, exec and rm."""
    goes_well(client, box, "dan")
    assert "refused streamlocal port forward" in (box.machine.folder / "console.log").read_text()


@pytest.mark.long
def test_where_neither_leads_there_both_are_named(client, box):
    """No sockets over sshd, and no program: what was tried, and the next command."""
    box.use_client("none")
    try:
        done = launch(client, box, user="dan")
    finally:
        box.use_client("debian")
    assert done.returncode == 4
    assert "AllowStreamLocalForwarding" in done.stderr
    assert "no program docker was found there" in done.stderr
    assert "--runtime native" in done.stderr
    assert box.machine.ssh("sh", "-c", "ls .launch/runs || true", user="dan") == ""


@pytest.fixture
def sudoer(box):
    """Let eve use sudo without a password on the machine; she is in no group docker."""
    if subprocess.run(["which", "sudo"], capture_output=True, check=False).returncode != 0:
        missing("no sudo here: apt-get install sudo")
    file = box.machine.folder / "sudoers"
    file.write_text("eve ALL=(root) NOPASSWD: ALL\n")
    file.chmod(0o440)
    box.machine.enter("mount", "--bind", str(file), "/etc/sudoers")
    assert box.machine.ssh("sudo", "-n", "id", "-u", user="eve").strip() == "0"
    yield "eve"
    box.machine.enter("umount", "/etc/sudoers")
    file.unlink()


def test_sudo_leads_to_an_engine_that_is_closed_to_the_user(client, box, sudoer):
    """`sudo = true`: the container still runs as the user, and what it makes is theirs."""
    goes_well(client, box, sudoer, sudo=True)


@pytest.mark.long
def test_sudo_leads_to_root_s_podman(client, box, podman, sudoer):
    """Its socket is in a folder that is closed to the user; `podman system dial-stdio` leads there."""
    goes_well(client, podman, sudoer, sudo=True, engine="podman")


@pytest.mark.long
def test_an_image_is_built_by_sudo_too(client, box, sudoer):
    """BuildKit's program as root reads the user's build folder, which is gone afterwards."""
    for image in box.docker("images", "--quiet", "launcher/cpu").split():
        box.docker("rmi", "--force", image)
    (client.project / "job.toml").write_text('name = "own"\ncommand = ["id", "-u"]\n')
    table = box.machine.table("dock", user=sudoer, sudo=True, runtime="docker")
    (client.project / "launch.toml").write_text(f'{table}\n[hosts.dock.build]\nbase = "{BASE}"\n')
    out = client.seen("--host", "dock", "--job", "./job.toml")
    assert "(BuildKit)" in out
    assert (
        box.machine.ssh(
            "find", "/dev/shm", "-maxdepth", "1", "-user", sudoer, "-name", "launch-*", user=sudoer
        )
        == ""
    )
    for name in box.docker("images", "-q", "launcher/cpu").split():
        box.docker("rmi", "-f", name)


@pytest.mark.long
def test_sudo_that_asks_for_a_password_is_told(client, box):
    """Nobody can type one here: what sudo says, and nothing is left."""
    done = launch(client, box, user="eve", sudo=True)
    assert done.returncode == 4
    assert "sudo" in done.stderr
    assert "Traceback" not in done.stderr
    assert box.machine.ssh("sh", "-c", "ls .launch/runs || true", user="eve") == ""


class _Old(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        body = b"HTTP/1.0 200 OK\r\nApi-Version: 1.39\r\nServer: Docker/18.09.1 (linux)\r\n\r\nOK"
        self.wfile.write(body)


def test_an_engine_that_is_too_old_is_refused_by_the_gate(client, box):
    """Its version and the oldest that would do, before anything is sent."""
    path = box.machine.homes / "ada" / "old.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), _Old) as server:
        path.chmod(0o666)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = launch(client, box, engine="/home/ada/old.sock", runtime="docker")
        server.shutdown()
    path.unlink()
    assert done.returncode == 3
    assert "version 18.09.1 is too old" in done.stderr
    assert "launch --host dock --runtime native" in done.stderr


def test_no_engine_is_told(client, box):
    """A socket that is not there, by the name that the host's table gives it."""
    box.use_client("none")
    try:
        done = launch(client, box, engine="/home/ada/none.sock", runtime="docker")
    finally:
        box.use_client("debian")
    assert done.returncode == 3
    assert "no engine /home/ada/none.sock that can be used" in done.stderr
    assert "--runtime native" in done.stderr


@pytest.mark.long
def test_a_home_that_is_closed_to_others_is_no_hindrance(client, box):
    """A home of mode 0700: the run works in it, and what it leaves is the user's to delete."""
    box.machine.ssh("chmod", "700", ".", user="bob")
    goes = launch(client, box, user="bob")
    assert goes.returncode == 0, goes.stdout + goes.stderr
    owners = box.machine.ssh("find", ".launch", "-printf", "%u\n", user="bob").split()
    assert set(owners) == {"bob"}
    assert box.machine.ssh("find", ".launch/runs", "-name", "x", user="bob").strip().endswith("/artifacts/x")
    box.machine.ssh("rm", "-r", ".launch", user="bob")


def test_the_doctor_names_an_engine_that_is_down_where_jobs_would_use_it(client, box):
    """With its socket, and how it is started; a host whose runs are processes lacks nothing."""
    table = box.machine.table
    tables = table("dock", runtime="docker") + table("any") + table("plain", runtime="native")
    (client.project / "launch.toml").write_text(tables)

    def rows():
        hosts = json.loads(client.run("doctor", "--json").stdout)["hosts"]
        return {
            one["host"]: next(row for row in one["rows"] if row["name"] == "docker")
            for one in hosts
            if one["host"] != "local"
        }

    assert {row["state"] for row in rows().values()} == {"ok"}
    box.stop_gracefully()
    try:
        found = rows()
    finally:
        box.start()
    states = [found[name]["state"] for name in ("dock", "any", "plain")]
    assert states == ["lacking", "unknown", "ok"]
    assert "docker at " in found["dock"]["found"]
    assert "sudo systemctl start docker" in found["dock"]["next"]
