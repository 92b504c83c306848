"""Images that are built, pulled and used on a host's own engine. Witnesses: docker's CLI and `ps` inside the machine, plain ssh."""

import base64
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from testbed.cards import Cards
from testbed.client import until
from testbed.engine import BASE, CLIENTS
from testbed.machine import CLIENT
from testbed.missing_part import MissingPartError
from testbed.own_scripts import weights_come_home, write_scripts
from testbed.wheels import WheelServer, make_certificate, make_torch, make_wheel

pytestmark = pytest.mark.testbed

SMALL = """\
name = "small"
command = ["python", "-c", "import small; print('has small', small.version)"]
requirements = ["small"]
"""


@pytest.fixture
def index(engine, small_wheels):
    """An index of small wheels on the bridge, without a password."""
    server = WheelServer(small_wheels)
    server.up()
    yield server
    server.down()


@pytest.fixture
def clean(engine):
    """The machine with the engine, which has the base image alone, before and afterwards."""
    clear(engine)
    yield engine
    clear(engine)


def clear(engine):
    """Remove ada's runs, every container, every image but the base, and what builds have kept."""
    for name in engine.docker("ps", "-aq").split():
        engine.docker("rm", "-f", name)
    for name in images(engine):
        if name != BASE:
            engine.docker("rmi", "-f", name)
    engine.docker("builder", "prune", "--all", "--force")
    engine.machine.ssh("rm", "-rf", ".launch/runs")


@pytest.fixture
def box(client, clean, index):
    """That machine, known to a client as `dock`, whose builds use the small index."""
    write_table(client, clean, index.index_url)
    write_job(client, SMALL)
    return clean


def write_table(client, box, index_url, pip="", build="", **more):
    """Name the engine's machine `dock` in a client's project; its builds install from that index alone."""
    (client.home / "pip.conf").write_text(
        f"[global]\nindex-url = {index_url}\ntrusted-host = {CLIENT}\ntimeout = 60\n{pip}"
    )
    (client.project / "launch.toml").write_text(
        f'{box.machine.table("dock", **{"runtime": "docker", **more})}\n[hosts.dock.build]\nbase = "{BASE}"\n'
        f'pip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n{build}'
    )


def write_job(client, text):
    (client.project / "job.toml").write_text(text)


LAUNCH = ("--host", "dock", "--job", "./job.toml")


def images(engine):
    """The names of the images that an engine has; what has none goes by its id."""
    lines = engine.docker("images", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").splitlines()
    return [number if "<none>" in name else name for name, number in map(str.split, lines)]


def ours(engine):
    return [name for name in images(engine) if name.startswith("launcher/")]


def nameless(engine):
    """The ids of the images without a name, of a builder's single steps too."""
    lines = engine.docker("images", "--all", "--format", "{{.Repository}} {{.ID}}").splitlines()
    return [number for name, number in map(str.split, lines) if name == "<none>"]


def running(engine, pattern):
    """The command lines of a machine's processes that match."""
    return engine.machine.enter("pgrep", "-af", pattern, check=False).splitlines()


def said(client):
    """What the client's one run has printed."""
    (log,) = client.runs.glob("[0-9]*/0002/log.txt")
    return log.read_text()


def nothing_is_left(engine, user="ada"):
    """No run, image, container, build, build folder or lock: by ssh, docker and ps."""
    until(lambda: not running(engine, "docker (buildx )?build |pip install"), "the build's end")
    until(lambda: not running(engine, "agent.pyz serve"), "the agent's end")
    assert engine.machine.ssh("sh", "-c", "ls .launch/runs || true", user=user) == ""
    assert engine.docker("ps", "-aq") == ""
    assert ours(engine) == []
    assert nameless(engine) == []
    assert (
        engine.machine.ssh(
            "find", "/dev/shm", "-maxdepth", "1", "-user", user, "-name", "launch-*", user=user
        )
        == ""
    )
    locks = engine.machine.ssh("sh", "-c", "ls -d .launch/hosts/*/locks/* || true", user=user).split()
    for lock in locks:
        assert engine.machine.ssh("flock", "--nonblock", lock, "true", user=user) == ""


def test_a_job_s_requirements_are_there_and_the_image_serves_again(client, box, index):
    """Built once; a second job of the same requirements asks the index for nothing."""
    out = client.seen(*LAUNCH)
    assert "(BuildKit)" in out
    assert said(client) == "has small 1.0\n"
    (name,) = ours(box)
    asked = len(index.requests)
    assert f"{name}, already there" in client.seen(*LAUNCH)
    assert len(index.requests) == asked


@pytest.mark.long
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_client_that_leaves_in_a_build_takes_the_build_with_it(client, box, index, kind):
    """Ctrl-C, or death: the build ends on the host, nothing of it stays, and the next launch builds."""
    leave_in_a_build(client, box, index, kind)
    nothing_is_left(box)
    index.gate.set()
    client.ok(*LAUNCH)
    assert said(client) == "has small 1.0\n"


def leave_in_a_build(client, engine, index, kind):
    """Start a launch, wait until its build installs, and leave by a signal."""
    index.gate.clear()
    process = client.start(*LAUNCH)
    until(lambda: running(engine, "pip install"), "pip in the build")
    os.kill(process.pid, kind)
    out, err = process.communicate(timeout=180)
    assert "Traceback" not in err, err
    assert process.returncode == (130 if kind == signal.SIGINT else -signal.SIGKILL), out + err


@pytest.mark.long
def test_a_link_that_dies_in_a_build_ends_the_build(client, box, index):
    """The client says that the connection is gone, in a sentence; the host is clean."""
    index.gate.clear()
    process = client.start(*LAUNCH)
    until(lambda: running(box, "pip install"), "pip in the build")
    box.machine.cut()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 4
    assert "Traceback" not in err, err
    assert "the connection" in err
    nothing_is_left(box)


# the classic builder, where a host has no BuildKit


@pytest.fixture
def classic(box):
    """Return a function that lets the users find another docker program; Debian's is back afterwards."""

    def use(kind):
        try:
            box.use_client(kind)
        except MissingPartError as error:
            pytest.skip(str(error))

    yield use
    box.use_client("debian")


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(CLIENTS.keys() - {"debian"}))
def test_a_host_without_buildkit_builds_what_needs_no_secret(client, box, classic, kind):
    """With a program that lacks the plugin, or without a program: by the engine's own builder."""
    classic(kind)
    out = client.seen(*LAUNCH)
    assert "(classic builder)" in out
    assert said(client) == "has small 1.0\n"


@pytest.mark.long
def test_a_host_without_buildkit_is_given_no_password(client, box, index, classic):
    """Refused with the mend; nothing was built, and nothing is left."""
    classic("none")
    write_table(client, box, index.index_url.replace("//", "//ada:hunter2@"))
    done = client.run(*LAUNCH)
    assert done.returncode == 3
    assert "a user or password in a URL" in done.stderr
    assert "buildx" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert index.requests == []
    nothing_is_left(box)


@pytest.mark.long
def test_a_client_that_leaves_the_classic_builder_takes_the_build_with_it(client, box, index, classic):
    """As with BuildKit: its connection to the engine was the build's life. The steps that were made go too."""
    classic("none")
    leave_in_a_build(client, box, index, signal.SIGINT)
    nothing_is_left(box)


@pytest.mark.long
def test_a_classic_build_that_fails_leaves_no_step_of_it(client, box, classic):
    """Neither the step before the failure nor those before that."""
    classic("none")
    write_job(client, SMALL.replace('["small"]', '["small", "nosuchpackage==9"]'))
    assert "the build of launcher/cpu:" in client.run(*LAUNCH).stderr
    nothing_is_left(box)


def stranger(engine, image=BASE):
    """Make an image without a name, as a user's own build does; return its id."""
    made = engine.docker("create", image).strip()
    number = engine.docker("commit", "--change", "ENV A=1", made).strip()
    engine.docker("rm", made)
    return number.removeprefix("sha256:")[:12]


@pytest.mark.long
@pytest.mark.slow(reason="three classic builds are begun, one is finished")
@pytest.mark.parametrize(
    "mend", [("image", "prune", "--host", "dock"), ("gc", "--host", "dock"), LAUNCH], ids="pgl"
)
def test_what_a_killed_client_left_of_a_classic_build_is_found(client, box, index, classic, mend):
    """By `image prune`, `gc` or the next launch; an image without a name that is not ours stays."""
    classic("none")
    theirs = stranger(box)
    leave_in_a_build(client, box, index, signal.SIGKILL)
    until(lambda: not running(box, "pip install"), "the build's end")
    until(lambda: not box.docker("ps", "-aq"), "the end of the build's container")
    assert len(nameless(box)) > 1
    index.gate.set()
    assert "launcher/cpu:" in client.ok("image", "prune", "--host", "dock", "--dry-run")
    client.ok(*mend)
    assert nameless_heads(box) == [theirs]
    assert nameless(box) == [theirs] or mend == LAUNCH  # the steps of an image with a name belong to it


@pytest.mark.long
def test_what_is_left_of_a_build_stays_while_another_one_has_its_lock(client, box, index, classic):
    """It may be made of those steps; afterwards they go."""
    classic("none")
    leave_in_a_build(client, box, index, signal.SIGKILL)
    until(lambda: not box.docker("ps", "-aq"), "the end of the build's container")
    until(lambda: not running(box, "agent.pyz serve"), "the agent's end")
    left = set(nameless(box))
    assert left
    digest = re.search(r"launcher/cpu:(\w+) ", client.ok("image", "list", "--host", "dock"))[1]
    (lock,) = box.machine.ssh("sh", "-c", f"ls .launch/hosts/*/locks/image-launcher-cpu-{digest}").split()
    words = [*box.machine.ssh_words(), f"flock --nonblock {lock} sh -c 'echo held; exec cat'"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        for words in (("image", "prune"), ("gc",)):
            client.ok(*words, "--host", "dock")
            assert set(nameless(box)) == left
        holder.stdin.close()
    client.ok("image", "prune", "--host", "dock")
    assert nameless(box) == []


@pytest.mark.long
def test_a_build_that_goes_on_is_not_cleared_away(client, box, index, classic):
    """Its steps have no name yet; another client's `image prune` and `gc` leave them, and it succeeds."""
    classic("none")
    index.gate.clear()
    process = client.start(*LAUNCH)
    until(lambda: running(box, "pip install"), "pip in the build")
    before = set(nameless(box))
    assert before
    assert "0 images" in client.ok("image", "prune", "--host", "dock")
    client.ok("gc", "--host", "dock")
    assert set(nameless(box)) == before
    index.gate.set()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert "(classic builder)" in err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["debian", "none"])
def test_an_image_of_ours_whose_name_has_moved_on_is_pruned(client, box, classic, kind):
    """As where two roots built the same at once. What others made from it has its labels, and stays."""
    classic(kind)
    client.ok("rm", launched(client))
    (name,) = ours(box)
    box.docker("tag", BASE, name)
    box.docker("rmi", name)
    (lost,) = nameless_heads(box)
    theirs = stranger(box, lost)
    client.ok("image", "prune", "--host", "dock")
    assert nameless_heads(box) == [theirs]
    box.docker("rmi", "--no-prune", theirs)
    assert f"{name} (without a name)" in client.ok("image", "list", "--host", "dock")
    client.ok("image", "prune", "--host", "dock")
    assert (images(box), nameless(box)) == ([BASE], [])


def nameless_heads(engine):
    """The ids of the images without a name that no other image is made of."""
    return engine.docker("images", "--filter", "dangling=true", "--quiet").split()


def launched(client):
    """Run the job to its end; return the run."""
    run = client.detached(*LAUNCH)
    client.run("attach", run)
    return run


# builds that fail


@pytest.mark.long
def test_a_pin_that_no_index_has_is_told_with_the_builder_s_lines(client, box):
    """The lines that caused it, no traceback, nothing left; the next launch of a right job works."""
    write_job(client, SMALL.replace('["small"]', '["small", "nosuchpackage==9"]'))
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "No matching distribution found for nosuchpackage==9" in done.stderr
    assert "the build of launcher/cpu:" in done.stderr
    assert (
        "failed: one of the requirements is in no index of this build (asked: the index in pip_conf)\n"
        in done.stderr
    )
    assert "another version in the job's requirements" in done.stderr
    nothing_is_left(box)
    write_job(client, SMALL)
    client.ok(*LAUNCH)
    assert said(client) == "has small 1.0\n"


@pytest.fixture
def bare(box):
    """An image without python3."""
    name = "launch-testbed/bare:1"
    made = box.docker("run", "--detach", BASE, "sh", "-c", "rm -f /usr/bin/python3*").strip()
    box.docker("wait", made)
    box.docker("commit", made, name)
    box.docker("rm", made)
    return name


@pytest.mark.long
def test_a_base_without_python_is_told(client, box, bare):
    """The build's last lines say what is missing."""
    table = client.project / "launch.toml"
    table.write_text(table.read_text().replace(BASE, bare))
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "python3: not found" in done.stderr
    assert "failed: its base has no python3\n" in done.stderr
    nothing_is_left(box)


@pytest.fixture
def large_index(engine, tmp_path):
    """An index that has a package of 60 MB too."""
    make_torch(tmp_path, "2.13.0+cpu")
    make_wheel(tmp_path, "small", "1.0")
    make_wheel(tmp_path, "large", "1.0", "text = " + repr(os.urandom(30_000_000).hex()))
    server = WheelServer(tmp_path)
    server.up()
    yield server
    server.down()


@pytest.mark.long
def test_a_full_disk_under_a_build_is_told_and_leaves_nothing(client, clean, large_index):
    """Said as what it is, nothing has a tag, and a job that fits is built next."""
    write_table(client, clean, large_index.index_url)
    with clean.on_a_small_disk(40):
        write_job(client, SMALL.replace('["small"]', '["small", "large"]'))
        done = client.run(*LAUNCH)
        assert done.returncode == 4
        assert (
            "failed: the host has no space left for it; images are on the disk of its engine\n" in done.stderr
        )
        assert "launch image prune --host dock" in done.stderr
        nothing_is_left(clean)
        write_job(client, SMALL)
        client.ok(*LAUNCH)


# what is in an image, and the card

NARROW = """
date = "2026-01-01"
tested = "2.14.1"
[drivers]
12 = "525.60.13"
[[build]]
name = "cu126"
torch = ">=2"
x86_64 = [{codes}]
[[release]]
torch = "2.14.1"
builds = ["cu126"]
triton = "3.8"
python = ["3.10", "3.14"]
"""


@pytest.fixture
def pascal(client, clean, tmp_path):
    """That machine with a P100, whose index has a torch without code for it."""
    make_torch(tmp_path, "2.14.1+cu126", "12.6", "sm_75 sm_80 sm_86")
    make_wheel(tmp_path, "small", "1.0")
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    cards, server = Cards(folder), WheelServer(tmp_path)
    cards.put("p100")
    server.up()
    write_table(client, clean, server.index_url)
    write_job(client, SMALL)
    with cards.on(clean.machine.homes / "ada"), clean.handing_on(cards):
        yield clean
    server.down()
    cards.close()


@pytest.mark.long
def test_a_torch_without_code_for_the_card_is_caught_by_the_table_and_by_the_image_where_that_lies(
    client, pascal
):
    """By the table before anything is sent; by torch's own list, without a card, before anything is started."""
    (client.project / "images").mkdir()
    table = client.project / "images" / "torch.toml"
    table.write_text(NARROW.format(codes='"7.5", "8.0"'))
    done = client.run(*LAUNCH, "--profile", "p100")
    assert done.returncode == 3
    assert "torch 2.14.1: cu126 has no code for capability 6.0" in done.stderr
    assert ours(pascal) == []
    table.unlink()
    done = client.run(*LAUNCH, "--profile", "p100")
    assert done.returncode == 3
    assert "is not for a Tesla P100 16 GB" in done.stderr
    assert "torch 2.14.1+cu126 has no code for capability 6.0: sm_75 sm_80 sm_86" in done.stderr
    nothing_is_left(pascal)


# images of the user's own


def test_an_image_of_the_user_s_own_is_used_as_it_is(client, box):
    """No build, no other name: the container is of that image."""
    write_job(client, f'name = "own"\ncommand = ["python3", "-c", "print(6 * 7)"]\nimage = "{BASE}"\n')
    out = client.seen(*LAUNCH)
    assert f"{BASE}, already there" in out
    assert said(client) == "42\n"
    (container,) = box.docker("ps", "-aq").split()
    assert box.docker("inspect", "--format", "{{.Config.Image}}", container).strip() == BASE
    assert ours(box) == []


def test_an_image_that_nobody_has_is_told_with_the_next_command(client, box):
    """What the engine says of it, and the command that tries again by hand."""
    name = "127.0.0.1:9/nobody/has:this"
    write_job(client, f'name = "own"\ncommand = ["true"]\nimage = "{name}"\n')
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "connection refused" in done.stderr
    assert f"docker pull {name}" in done.stderr
    nothing_is_left(box)


@pytest.mark.long
def test_an_image_without_python_is_told(client, box, bare):
    """The agent cannot begin in there: the message says so, the container is gone, the run as well."""
    write_job(client, f'name = "own"\ncommand = ["true"]\nimage = "{bare}"\n')
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "its image has no python3" in done.stderr
    nothing_is_left(box)


@pytest.mark.long
def test_a_container_that_cannot_write_says_so_once(client, box):
    """An engine that sees the home read-only: user and folder are named, nothing goes round, nothing is left."""
    home = "/home/ada"
    box.kill(has_containerd=True)
    try:
        script = f"mount --bind {home} {home} && mount -o remount,bind,ro {home} && exec {box.boot_script}"
        box.machine.enter("unshare", "--mount", "sh", "-c", script)
        box.wait()
        done = client.run("--host", "dock", "--job", "./job.toml", "--set", "requirements=[]")
        assert done.returncode == 4
        uid = box.machine.ssh("id", "-u").strip()
        assert f"user {uid}:{uid} cannot write to {home}/.launch/runs/" in done.stderr
        assert "Read-only file system" in done.stderr
        until(lambda: not running(box, "agent.pyz"), "the agents' end")
        assert box.docker("ps", "-aq") == ""
        assert box.machine.ssh("ls", ".launch/runs") == ""
    finally:
        box.kill(has_containerd=True)
        box.start()


# many at once, and what is secret


def ended(processes, yet=True):
    return [one for one in processes if (one.poll() is not None) is yet]


CROWD = int(os.environ.get("LAUNCH_TESTBED_CROWD", "20"))


@pytest.mark.long
def test_many_launches_at_once_build_once(client, box, index):
    """Through one sshd as it comes (10 sessions, 10 at the door): all start and succeed, one image, one download."""
    index.gate.clear()
    crowd = [client.start("--detach", *LAUNCH) for _ in range(CROWD)]

    def waiting():
        # Not by ssh: sshd's door is full, and turns us away as well.
        return box.machine.enter("sh", "-c", "ls /home/ada/.launch/runs || true").split()

    try:
        until(lambda: len(waiting()) == CROWD or ended(crowd), f"{CROWD} launches to wait", timeout=120)
        index.gate.set()
        for process in crowd:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, out + err
    finally:
        for process in ended(crowd, yet=False):
            process.kill()
            process.communicate()

    def states():
        rows = json.loads(client.ok("ps", "--json", "--host", "dock"))["runs"]
        return [row["state"] for row in rows]

    until(lambda: set(states()) == {"succeeded"}, "all to succeed")
    assert len(states()) == CROWD
    assert len(ours(box)) == 1
    files = [path for path, status in index.requests if path.startswith("/wheels/small") and status == 200]
    assert len(files) == 1
    inspected = box.docker("inspect", "--format", "{{.Image}}", *box.docker("ps", "-aq").split()).split()
    assert len(inspected) == CROWD
    assert len(set(inspected)) == 1


SAYS_SO = """
import hashlib, os, time
print("token", hashlib.sha256(os.environb[b"HF_TOKEN"]).hexdigest(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_no_secret_of_a_build_or_a_run_is_left_anywhere(client, box, small_wheels, monkeypatch, tmp_path):
    """An index's password, a CA's certificate, a job's token: looked for while it builds, while it runs, and afterwards."""
    began = time.time() - 1
    whole, public = make_certificate(tmp_path)
    password, token = secrets.token_hex(20), "hf_" + secrets.token_hex(20)
    monkeypatch.setenv("HF_TOKEN", token)
    certificate = public.read_text().splitlines()[2]
    needles = [password, base64.b64encode(f"ada:{password}".encode()).decode(), token, certificate]
    index = WheelServer(small_wheels, user="ada", password=password, certificate=whole)
    write_table(client, box, index.index_url_with_password, build=f'ca_bundle = "{public}"\n')
    write_job(client, 'name = "small"\ncommand = ["python", "train.py"]\nrequirements = ["small"]\n')
    client.script(SAYS_SO)
    index.gate.clear()
    index.up()
    try:
        process = client.start(*LAUNCH, "--secret", "HF_TOKEN")
        until(lambda: running(box, "pip install"), "pip in the build")
        seen = box.machine.enter("ps", "axww", "-o", "args=")
        assert "docker build" in seen
        assert not traces(seen.encode(), needles)
        assert not traces(_readable_by(box, "bob"), needles)
        index.gate.set()
        run = until(lambda: _begun(client), "the run")
        assert not traces(box.docker("inspect", f"launch-{run}").encode(), needles)
        (image,) = ours(box)
        assert not traces(box.docker("history", "--no-trunc", image).encode(), needles)
        assert not traces(box.docker("inspect", image).encode(), needles)
        holding = box.machine.ssh("grep", "-rlF", "-D", "skip", token, f".launch/runs/{run}").split()
        assert holding == [f".launch/runs/{run}/record/secrets.env"]
        box.machine.ssh("touch", f".launch/runs/{run}/work/code/go")
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, out + err
    finally:
        index.down()
    assert hashlib.sha256(token.encode()).hexdigest() in said(client)
    assert _left_in_layers(box, image, tmp_path, needles) == []
    assert _left_on(box, needles, began) == []
    for folder in (client.runs, client.home / ".cache"):
        for path in folder.rglob("*"):
            assert path.is_dir() or not traces(path.read_bytes(), needles), path


def traces(data, needles):
    """Which of the secrets are in some bytes."""
    return [one for one in needles if one.encode() in data]


def _readable_by(engine, user):
    """What another user can read of the folders that builds and runs use for a while."""
    script = "cat $(find /dev/shm /home/ada/.launch -type f -readable 2>/dev/null) </dev/null"
    words = engine.machine.ssh_words(user)
    return subprocess.run([*words, script], stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout


def _begun(client):
    """The id of the client's one run, once its first attempt is in the mirror."""
    return next((path.parent.name for path in client.runs.glob("[0-9]*/0002")), None)


def _left_in_layers(engine, image, folder, needles):
    """The files of an image, and its own description, that hold a secret: every member of what `docker save` writes."""
    with (folder / "image.tar").open("wb") as file:
        words = [*engine.machine.ssh_words(), f"docker save {image}"]
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=file, check=True)
    found = []
    with tarfile.open(folder / "image.tar") as whole:
        for member in filter(tarfile.TarInfo.isfile, whole):
            data = whole.extractfile(member).read()
            found += [(member.name, one) for one in traces(data, needles)]
    assert (folder / "image.tar").stat().st_size > 50_000_000
    return found


def _left_on(engine, needles, since):
    """The files of a machine that hold a secret, of those that have changed since a time: its engine's, homes', all folders'.

    What lies there from before is gigabytes, and cannot hold what did not exist.
    """
    patterns = [word for needle in needles for word in ("-e", needle)]
    recent = ("-type", "f", "-newerct", f"@{since}", "-print0")
    everything = ("find", str(engine.machine.folder), "-xdev", *recent)
    temporary = ("find", "/tmp", "/var/tmp", "/dev/shm", "-xdev", "-user", "ada", *recent)
    found = [engine.machine.enter(*words, check=False) for words in (everything, temporary)]
    paths = [path for path in "".join(found).split("\0") if path]
    assert len(paths) > 50  # a build and a run have been there
    said = ""
    for first in range(0, len(paths), 500):
        words = ("grep", "-lF", "-D", "skip", *patterns, "--", *paths[first : first + 500])
        said += engine.machine.enter(*words, check=False)
    return said.splitlines()


def test_a_private_key_among_the_certificates_is_refused(client, box, tmp_path):
    """Before anything is sent; the message names the file and repeats nothing of it."""
    whole, _ = make_certificate(tmp_path)
    write_table(client, box, f"http://{CLIENT}:9/simple/", build=f'ca_bundle = "{whole}"\n')
    done = client.run(*LAUNCH)
    assert done.returncode == 2
    assert f'ca_bundle = "{whole}": holds a private key' in done.stderr
    assert not traces((done.stdout + done.stderr).encode(), whole.read_text().splitlines()[1:2])
    nothing_is_left(box)


# the main job


@pytest.mark.long
@pytest.mark.training
def test_sft_trains_in_an_image_built_on_the_host(client, clean, wheels, copy_demo):
    """Torch and its kin from the index, some steps on the CPU, and the adapter comes home as the host has it."""
    copy_demo(clean.machine.homes / "ada" / ".launch")
    clean.machine.enter("chown", "-R", "ada:ada", "/home/ada/.launch")
    write_table(client, clean, wheels.index_url)
    few = (
        "steps=6",
        "save_every_steps=3",
        "batch.global=8",
        "settings.eval_limit=4",
        "settings.logging_steps=2",
    )
    words = [word for one in few for word in ("--set", one)]
    out = client.seen("--host", "dock", "--job", "sft", *words, timeout=400)
    assert "(BuildKit)" in out
    assert "succeeded" in out
    run = _begun(client)
    versions = clean.docker(
        "run", "--rm", *ours(clean), "python3", "-c", "import torch; print(torch.__version__)"
    )
    assert versions.startswith("2.13.0")
    adapter = "artifacts/adapter/adapter_model.safetensors"
    theirs = clean.machine.ssh("sha256sum", f".launch/runs/{run}/work/{adapter}").split()[0]
    assert hashlib.sha256((client.runs / run / adapter).read_bytes()).hexdigest() == theirs
    told = json.loads((client.runs / run / "artifacts" / "result.json").read_text())
    assert told["steps"] == 6
    # In the same image: scripts that know nothing of launch.
    built = ours(clean)
    write_scripts(client)
    code = ".launch/runs/{}/work/code/{}"
    weights_come_home(
        client, "dock", lambda run, name: clean.machine.ssh("sha256sum", code.format(run, name)).split()[0]
    )
    assert ours(clean) == built
