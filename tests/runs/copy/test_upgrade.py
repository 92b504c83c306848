"""Runs, connections and rents that an older version began, and that go on when today's `launch` takes its place."""

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from testbed import trainer
from testbed.client import REPOSITORY, is_gone, missing, processes_of, until

pytestmark = pytest.mark.long

OLDER = "fd775bdf"
"""The last commit before issue 23: one process held a connection, and another stood by for the next commands."""
STEPS = 2000
ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
SLOW = """
def train(step):
    if not os.path.exists(sys.argv[1] + ".enough"):
        time.sleep(0.05)
"""
WAITS = 'import os, time\nprint("begun", flush=True)\nwhile not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)\n'


@pytest.fixture(scope="module")
def older():
    """The folder of the older version."""
    known = subprocess.run(["git", "cat-file", "-e", OLDER], cwd=REPOSITORY, capture_output=True, check=False)
    if known.returncode:
        missing(f"this copy of the repository lacks commit {OLDER}: git fetch --unshallow")
    folder = Path(tempfile.mkdtemp(prefix="launch-older-"))
    parts = ["launcher", "images", "profiles", "jobs"]
    packed = subprocess.run(
        ["git", "archive", OLDER, *parts], cwd=REPOSITORY, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def version(client, folder):
    """Have a client's commands be those of the version in a folder."""
    before = client.variables.get("PYTHONPATH", "")
    client.variables["PYTHONPATH"] = f"{folder}:{before}"
    yield
    client.variables["PYTHONPATH"] = before
    if not before:
        del client.variables["PYTHONPATH"]


def agents(root):
    """The agents on a host, each in a folder by its digest."""
    return sorted(path.name for path in (root / "agent").iterdir())


HOLDERS = (b"launcher.hosts.holder", b"launcher.transport.connection_server")
"""The module that holds a connection, in the older version and in today's."""


def holders(client):
    """The processes that hold a connection of a client."""
    return [
        pid
        for pid in processes_of(client.home)
        if any(module in Path(f"/proc/{pid}/cmdline").read_bytes() for module in HOLDERS)
    ]


def test_a_run_that_an_older_version_keeps_is_followed_stopped_and_resumed(client, older):
    """Its keeper and agent stay as they are; the ledger outside the run has each sample once."""
    ledger = client.home / "samples"
    client.script(trainer.source(SLOW))
    (client.project / "job.toml").write_text(
        f'name = "upgrade"\ncommand = ["python", "train.py", "{ledger}", "0"]\n'
        f"steps = {STEPS}\nsave_every_steps = 5\n[batch]\nglobal = {trainer.GLOBAL_BATCH}\n"
    )
    with version(client, older):
        run = client.detached("--job", "./job.toml")
    until(lambda: len(trainer.read(ledger)) > 10, "ten steps")
    kept = processes_of(client.home / ".launch" / "runs" / run)

    assert client.summary(run)["state"] == "running"
    assert client.ok("metrics", run, "--csv").count("\n") > 5
    assert processes_of(client.home / ".launch" / "runs" / run) == kept
    assert len(agents(client.home / ".launch")) == 2

    client.ok("stop", run)
    assert client.summary(run)["state"] == "stopped"
    Path(f"{ledger}.enough").touch()
    child = client.ok("resume", run, "--detach").split()[-1]
    client.ok("attach", child)
    assert client.summary(child)["state"] == "succeeded"
    model = client.runs / child / "artifacts" / "model"
    trainer.judge(ledger, model, STEPS, 5)
    client.ok("pull", run, "--all")
    client.ok("rm", "--yes", run)


@pytest.mark.testbed
def test_a_connection_that_an_older_version_holds_is_used_by_it_alone_and_closed_by_both(
    client, ssh_host, older, request
):
    """Each version has its own; a command of either closes those of both."""
    sockets = tempfile.mkdtemp(prefix="launch-testbed-")  # a socket's path may have 100 bytes
    request.addfinalizer(lambda: shutil.rmtree(sockets))
    client.variables["XDG_RUNTIME_DIR"] = sockets
    (client.project / "launch.toml").write_text(ssh_host.table(hold=600))
    with version(client, older):
        client.ok("--host", "A", "--", "true")
        (first,) = until(lambda: holders(client), "the older version's holder")
    client.ok("--host", "A", "--", "true")
    until(lambda: len(holders(client)) == 2, "our holder")
    with version(client, older):
        client.ok("ps", "--host", "A")
    assert not is_gone(first)
    client.ok("hosts", "--close")
    until(lambda: not holders(client), "the end of both")


@pytest.mark.parametrize("ends", ["by itself", "by stop"])
def test_a_machine_that_an_older_version_rented_is_looked_after_and_ended(lambda_cloud, older, ends):
    """Its keeper goes on, is seen as one that lives, and the bill ends once."""
    client = lambda_cloud.client
    client.script(WAITS)
    with version(client, older):
        run = client.detached(*ON_RENTED, "--", "python3", "train.py")
    (keeper,) = lambda_cloud.keepers()
    assert str(older).encode() in Path(f"/proc/{keeper}/environ").read_bytes()
    assert client.summary(run)["state"] == "running"
    assert lambda_cloud.keepers() == [keeper]
    if ends == "by stop":
        client.ok("stop", run)
    else:
        lambda_cloud.go()
    lambda_cloud.until_gone()
    lambda_cloud.until_left()
    (rental,) = lambda_cloud.rentals()
    assert rental.state == "ended"
    assert lambda_cloud.service.state.violations == []
