"""Environments for native runs, made on the SSH host itself. Witnesses: plain ssh (ls, cat, ps), and the index's own log."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from testbed.client import missing, until
from testbed.sshd import SshHost
from testbed.wheels import WheelServer, make_torch, make_wheel

pytestmark = pytest.mark.testbed

JOB = """\
name = "small"
command = ["python", "train.py"]
requirements = ["small"]
steps = 1
save_every_steps = 1
"""
SCRIPT = """
import os, sys, small
import launcher_worker as worker
worker.resume_from()
print("has small", small.version, "in", sys.prefix)
worker.save(worker.knobs().steps, lambda folder: open(os.path.join(folder, "step"), "w").close())
worker.done(worker.knobs().steps)
"""
LAUNCH = ("--host", "A", "--job", "./job.toml")
HALF_MADE = "find .launch/envs -mindepth 2 -maxdepth 2 | while read -r one; do test -e $one/environment.json || echo $one; done"


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A folder with a wheel `small`, and one that stands for torch."""
    folder = tmp_path_factory.mktemp("stock")
    make_torch(folder, "2.13.0+cpu")
    make_wheel(folder, "small", "1.0")
    return folder


@pytest.fixture
def index(stock):
    """An index of these, on loopback."""
    server = WheelServer(stock, address="127.0.0.1", has_bridge=False)
    server.up()
    yield server
    server.down()


@pytest.fixture
def box(client, lab, index):
    """The SSH host, without environments, whose builds use that index alone."""
    clear(lab)
    write_table(client, lab, index)
    write_job(client, JOB)
    client.script(SCRIPT)
    yield lab
    clear(lab)


def clear(lab):
    """Remove environments and runs, and whatever of ours still runs there."""
    until(lambda: not making(lab), "the makers' end")
    lab.ssh("sh", "-c", "rm -rf .launch/envs .launch/runs /dev/shm/launch-build-$(id -u)-*")


def write_table(client, lab, index, **more):
    """Name the host `A` in a client's project; pip looks nowhere else, whatever this machine's own settings say."""
    (client.home / "pip.conf").write_text(
        f"[global]\nindex-url = {index.index_url}\nextra-index-url =\nfind-links =\ntrusted-host = 127.0.0.1\n"
    )
    (client.project / "launch.toml").write_text(
        f'{lab.table(runtime="native", **more)}\n[hosts.A.build]\npip_conf = "{client.home}/pip.conf"\ntorch_index = ""\n'
    )


def write_job(client, text):
    (client.project / "job.toml").write_text(text)


def making(lab):
    """The processes of the host's user that make an environment, by ps."""
    lines = lab.ssh("ps", "-u", lab.user, "-o", "pid=,args=").splitlines()
    return [line for line in lines if re.search(r"-m (venv|pip|ensurepip)|agent.pyz serve", line)]


def environments(lab):
    """The environments that lie there, half-made ones too."""
    return lab.ssh("sh", "-c", "ls -d .launch/envs/*/* 2>/dev/null || true").split()


def half_made(lab):
    return lab.ssh("sh", "-c", HALF_MADE, check=False).split()


def downloads(index, name="small"):
    return [path for path, status in index.requests if path.startswith(f"/wheels/{name}") and status == 200]


def said(client, run=None):
    return client.ok("logs", *([run] if run else []))


def test_an_environment_is_made_once_and_used_again(client, box, index):
    """From requirements.txt. The second launch asks the index for nothing; a resumed run keeps it; `gc` takes it with the last run that names it."""
    write_job(client, JOB.replace('requirements = ["small"]\n', ""))
    (client.project / "requirements.txt").write_text("# what it needs\nsmall>=1  # at least\n")
    out = client.seen(*LAUNCH)
    assert "environment from requirements.txt: small" in out
    (path,) = environments(box)
    name = os.path.basename(path)
    assert re.search(rf"environment +.*{name}, made in \d+ s \(by pip, Python 3", out)
    assert said(client) == f"has small 1.0 in {box.home}/{path}\n"
    assert json.loads(box.ssh("cat", f"{path}/environment.json"))["packages"]["torch"] == "2.13.0+cpu"
    assert "tmp" not in box.ssh("ls", path).split()
    (run,) = box.ssh("ls", ".launch/runs").split()
    record = json.loads(box.ssh("cat", f".launch/runs/{run}/record/0001/attempt.json"))
    assert record["runtime"]["interpreter"] == f"{box.home}/{path}/bin/python"
    asked = len(index.requests)
    assert f"{name}, already there" in client.seen(*LAUNCH)
    assert f"{name}, already there" in client.seen("resume", "last", "--set", "steps=2")
    assert said(client) == f"has small 1.0 in {box.home}/{path}\n"
    assert len(index.requests) == asked
    assert client.ok("gc", "--host", "A").count("environment") == 0
    assert environments(box) == [path]
    client.ok("rm", "--force", *box.ssh("ls", ".launch/runs").split())
    told = json.loads(client.ok("gc", "--host", "A", "--json"))["items"]
    (item,) = [one for one in told if one["kind"] == "environment"]
    assert item["path"] == path.removeprefix(".launch/")
    assert item["bytes"] > 1_000_000
    assert environments(box) == []


def downloads_begun(index):
    """Whether pip has looked for a package: it asks for a wheel next, and waits at the gate."""
    return any(path.startswith("/simple/torch") for path, _ in index.requests)


@pytest.mark.long
def test_two_launches_at_once_make_one_and_show_no_password(client, box, stock):
    """The second waits, says so, and uses what the first has made; the index's password is in no argument and no file that stays."""
    index = WheelServer(stock, user="ada", password="hunter2", address="127.0.0.1", has_bridge=False)
    index.gate.clear()
    index.up()
    try:
        write_table(client, box, index)
        conf = client.home / "pip.conf"
        conf.write_text(conf.read_text().replace(index.index_url, index.index_url_with_password))
        pair = [client.start(*LAUNCH) for _ in range(2)]
        until(lambda: ("/simple/torch/", 200) in index.requests, "pip at the index")
        until(lambda: len(box.ssh("ls", ".launch/runs").split()) == 2, "both runs")
        seen = box.ssh("ps", "axww", "-o", "args=")
        assert "pip install" in seen
        assert "hunter2" not in seen
        asked = ("find", "/dev/shm", "-user", box.user, "-name", "pip_conf", "-printf", "%m")
        assert box.ssh(*asked, check=False) == "600"  # find fails if another test's folder goes meanwhile
        index.gate.set()
        told = [process.communicate(timeout=180) for process in pair]
    finally:
        index.down()
    assert [process.returncode for process in pair] == [0, 0], told
    assert len(environments(box)) == 1
    assert len(downloads(index)) == 1
    words = " ".join(out + err for out, err in told)
    assert "made in" in words
    assert "made by another launch" in words
    assert "hunter2" not in words
    assert box.ssh("sh", "-c", "grep -rl hunter2 .launch /dev/shm 2>/dev/null || true") == ""


@pytest.mark.long
def test_whoever_dies_while_it_is_made_leaves_nothing_half_made(client, box, index):
    """Ctrl-C, a killed client, a killed agent: pip ends each time, and the launch after them makes it."""
    index.gate.clear()
    for who, code in (("SIGINT", 130), ("SIGKILL", -signal.SIGKILL), ("agent", 4)):
        index.requests.clear()
        process = client.start(*LAUNCH)
        if who == "SIGINT":
            until(lambda: half_made(box), "its folder")
        else:
            until(lambda: downloads_begun(index), "pip at the index")
            assert len(half_made(box)) == 1
        if who == "agent":
            (serve,) = (line.split()[0] for line in making(box) if "agent.pyz serve" in line)
            box.ssh("kill", "-KILL", serve)
        else:
            os.kill(process.pid, getattr(signal, who))
        out, err = process.communicate(timeout=180)
        assert "Traceback" not in err, err
        assert process.returncode == code, out + err
        until(lambda: not making(box), "pip's end")
        if who != "agent":  # after whom nobody is left to do it: the next launch sweeps
            assert environments(box) == []
            assert box.ssh("ls", ".launch/runs") == ""
            asked = f"find /dev/shm -ignore_readdir_race -maxdepth 1 -user {box.user} -name launch-*"
            assert box.ssh(*asked.split()) == ""  # beside the folders of other tests
    index.gate.set()
    client.ok(*LAUNCH)
    assert said(client).startswith("has small 1.0")
    assert half_made(box) == []


@pytest.mark.long
def test_what_pip_cannot_find_is_told_in_its_own_words(client, box):
    """The line that caused it, no traceback, nothing left; what a shell would heed stays a requirement."""
    write_job(client, JOB.replace('["small"]', """["small", 'nosuch>9; python_version>"3"']"""))
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "could not be made (requirements)" in done.stderr
    assert "| ERROR: No matching distribution found for nosuch>9" in done.stderr
    assert "Collecting small" not in done.stderr
    assert "(asked: the index in pip_conf)" in done.stderr
    assert environments(box) == []
    assert box.ssh("ls", ".launch/runs") == ""
    assert (
        box.ssh("find", ".", "-newer", ".launch/runs", "-name", "[93]*", "-not", "-path", "./.launch/*") == ""
    )


@pytest.mark.long
def test_a_torch_index_out_of_reach_is_named_and_what_is_proposed_works(client, box, index):
    """Torch then comes from the index that has the rest."""
    table = client.project / "launch.toml"
    proposal = 'torch_index = ""'
    table.write_text(table.read_text().replace(proposal, 'torch_index = "http://127.0.0.1:9/torch"'))
    (client.home / "pip.conf").write_text((client.home / "pip.conf").read_text() + "retries = 1\n")
    done = client.run(*LAUNCH)
    assert done.returncode == 4
    assert "cannot be reached from there (asked: http://127.0.0.1:9/torch)" in done.stderr
    assert f"{proposal} in [hosts.A.build]" in done.stderr
    table.write_text(table.read_text().replace('torch_index = "http://127.0.0.1:9/torch"', proposal))
    client.ok(*LAUNCH)
    assert said(client).startswith("has small 1.0")


OTHER_TORCH = """
from types import SimpleNamespace
__version__, version, _C = "2.12.0", SimpleNamespace(cuda=None), SimpleNamespace()
"""


@pytest.mark.long
def test_a_torch_that_is_not_the_one_that_was_chosen_is_refused_before_it_counts(
    client, box, tmp_path, index
):
    """An index whose wheel holds what its name does not say."""
    make_wheel(tmp_path, "torch", "2.13.0", OTHER_TORCH)
    make_wheel(tmp_path, "small", "1.0")
    other = WheelServer(tmp_path, address="127.0.0.1", has_bridge=False)
    other.up()
    try:
        write_table(client, box, other)
        done = client.run(*LAUNCH)
    finally:
        other.down()
    assert done.returncode == 3
    assert "torch is 2.12.0, not 2.13.0" in done.stderr
    assert environments(box) == []


@pytest.mark.long
def test_a_full_disk_is_told_and_the_next_launch_works(client, box, index, small_disk):
    """Room that runs out while pip fills it."""
    subprocess.run(["mount", "-o", "remount,size=1200m", small_disk], check=True)  # the gate asks for 1 GB
    shutil.chown(small_disk, box.user)
    write_table(client, box, index, root=str(small_disk))
    index.gate.clear()
    process = client.start(*LAUNCH)
    until(lambda: downloads_begun(index), "pip at the index")
    disk = os.statvfs(small_disk)
    used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    subprocess.run(["mount", "-o", f"remount,size={used + 4096}", small_disk], check=True)
    index.gate.set()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 4, out + err
    assert "No space left on device" in err
    assert "set root = " in err
    assert not list(small_disk.glob("envs/*/*"))
    subprocess.run(["mount", "-o", "remount,size=1200m", small_disk], check=True)
    client.ok(*LAUNCH)
    assert len(list(small_disk.glob("envs/*/*/environment.json"))) == 1


# hosts without ensurepip


@pytest.fixture
def bare(client, box, index):
    """The same machine by another sshd, which sees no ensurepip."""
    if os.geteuid() != 0:
        missing("a file system without ensurepip needs root")
    hidden = [str(path) for path in Path("/usr/lib").glob("python3*/ensurepip")]
    if not hidden:
        missing("no ensurepip below /usr/lib that could be hidden: apt-get install python3-venv")
    script = "".join(f"mount -t tmpfs tmpfs {path} && " for path in hidden)
    host = SshHost(Path(tempfile.mkdtemp(prefix="launch-testbed-")))
    host.within = ("unshare", "--mount", "sh", "-c", f'{script}exec "$@"', "sh")
    host.up()
    write_table(client, host, index)
    yield host
    host.ssh("rm", "-rf", ".local", "uv-said")
    host.down()
    shutil.rmtree(host.folder)


def test_a_host_without_ensurepip_is_refused_before_anything_is_sent(client, bare):
    """What was found, and the mend."""
    done = client.run(*LAUNCH)
    assert done.returncode == 3
    assert "lacks small, and no program on the host can make an environment" in done.stderr
    assert "/usr/bin/python3 3." in done.stderr
    assert "has no ensurepip" in done.stderr
    assert "python3-venv" in done.stderr
    assert bare.ssh("sh", "-c", "ls .launch/runs .launch/envs 2>/dev/null || true").split() in (
        [],
        [".launch/runs:"],
    )


UV = """\
#!/bin/sh
case $1 in
--version) echo "uv 0.0.1 (stand-in)"; exit;;
esac
{ echo "$*"; env; } > $HOME/uv-said
for path; do :; done
exec /usr/bin/python3 -I -m venv "$path"
"""
"""uv's edge alone: it writes down what it is told, and fails as venv does."""


def test_a_host_without_ensurepip_uses_uv_where_there_is_one(client, bare, index):
    """uv takes the Python that is there, is asked for pip, and has the index from pip's settings."""
    bare.ssh(
        "sh", "-c", f"mkdir -p .local/bin && cat > .local/bin/uv <<'END' && chmod +x .local/bin/uv\n{UV}END\n"
    )
    done = client.run(*LAUNCH)
    told = bare.ssh("cat", "uv-said").splitlines()
    assert re.fullmatch(r"venv --seed --python /usr/bin/python3 /\S+/[0-9a-f]{12}", told[0])
    assert f"UV_DEFAULT_INDEX={index.index_url}" in told
    assert done.returncode == 4
    assert "could not be made (venv)" in done.stderr
    assert "because ensurepip is not" in done.stderr
    assert environments(bare) == []
