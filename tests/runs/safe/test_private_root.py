"""What lies below a root is for its user alone; what a training writes elsewhere has the modes of that user's login.

The witness is another user of the host, who tries to read.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from testbed.client import missing

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="each test starts an sshd's logins and runs")]

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
WRITES = """
import os, launcher_worker as worker
os.umask(os.umask(0))
open(os.path.join("..", "artifacts", "made"), "w").write("private weights")
os.makedirs("out", exist_ok=True)
open("out/made", "w").write("private text")
open(os.environ["SHARED"] + "/shared", "w").write("for colleagues")
os.makedirs(os.environ["HF_HOME"], exist_ok=True)
open(os.environ["HF_HOME"] + "/downloaded", "w").write("private download")
worker.log(1, loss=1.0)
worker.save(1, lambda folder: open(os.path.join(folder, "state"), "w").write("private state"))
worker.done(1)
"""


@pytest.fixture
def folder(ssh_host):
    """A folder that all may enter and write to, but in which, as in /tmp, nobody replaces what is another's."""
    if os.geteuid() != 0:
        missing("to read as another user needs root")
    path = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    path.chmod(0o1777)
    (path / "shared").mkdir()
    (path / "shared").chmod(0o777)
    bashrc = ssh_host.home / ".bashrc"
    before = bashrc.read_text()
    bashrc.write_text(f"umask 002\nexport SHARED={path}/shared\n{before}")
    yield path
    bashrc.write_text(before)
    shutil.rmtree(path)


def by_another(*words):
    """Run a command as another user of the host."""
    return subprocess.run([*NOBODY, *words], capture_output=True, text=True, check=False, cwd="/")


def files_below(folder):
    return [str(path) for path in folder.rglob("*") if path.is_file()]


def launch(client, ssh_host, root, script=WRITES):
    (client.project / "launch.toml").write_text(ssh_host.table(root=str(root)))
    (client.project / "notes.txt").write_text("private notes")
    (client.project / "notes.txt").chmod(0o666)
    client.script(script)
    return client.run("--host", "A", "--", "python", "train.py")


@pytest.mark.parametrize("before", [pytest.param("new", marks=pytest.mark.long), "open"])
def test_another_user_of_the_host_reads_nothing_below_a_root(client, ssh_host, folder, before):
    """Not what was sent, nor what the run writes, nor our own files; also below a root that was open before."""
    root = folder / "root"
    if before == "open":
        ssh_host.ssh("mkdir", str(root))
        ssh_host.ssh("chmod", "777", str(root))
        ssh_host.ssh("touch", f"{root}/known-name")
        assert by_another("cat", f"{root}/known-name").returncode == 0
    done = launch(client, ssh_host, root)
    assert done.returncode == 0, done.stderr
    assert root.stat().st_mode & 0o777 == 0o700
    paths = files_below(root)
    names = {os.path.basename(path) for path in paths}
    assert {
        "notes.txt",
        "made",
        "state",
        "downloaded",
        "agent.pyz",
        "plan.json",
        "manifest.json",
        "log.txt",
    } <= names
    said = by_another("cat", *paths)
    assert (said.stdout, said.stderr.count("Permission denied")) == ("", len(paths))
    assert by_another("ls", str(root)).returncode != 0


def test_our_own_files_are_private_one_by_one(client, ssh_host, folder):
    """A root that its user opens again shows no more than what the user's files and programs have themselves."""
    root = folder / "root"
    assert launch(client, ssh_host, root).returncode == 0
    root.chmod(0o755)
    run = next((root / "runs").iterdir())
    assert by_another("find", str(root), "-mindepth", "2").stdout == ""
    for path in (
        root / "runs",
        root / "store",
        root / "agent",
        run / "control",
        run / "record",
    ):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_training_has_the_umask_of_its_users_login(client, ssh_host, folder):
    """What it writes into a folder that others share can be read and changed by them; so can what a command beside it does."""
    assert launch(client, ssh_host, folder / "root").returncode == 0
    written = folder / "shared" / "shared"
    assert written.stat().st_mode & 0o777 == 0o664
    assert by_another("cat", str(written)).stdout == "for colleagues"
    client.ok("exec", "last", "--", "touch", str(folder / "shared" / "beside"))
    assert (folder / "shared" / "beside").stat().st_mode & 0o777 == 0o664


def test_a_root_of_another_user_is_refused_with_the_reason(client, ssh_host, folder):
    """Its owner could replace what runs there."""
    root = folder / "root"
    root.mkdir()
    root.chmod(0o777)
    done = launch(client, ssh_host, root)
    assert done.returncode == 4
    assert f"{root}: it belongs to another user (uid 0)" in done.stderr
    assert "root = " in done.stderr
    assert list(root.iterdir()) == []
