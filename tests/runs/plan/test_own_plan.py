"""A client holds to the plan that it made and to the root that it launched in. Witnesses: the files on both sides."""

import hashlib
import json
import shutil

import pytest
from testbed.client import Client
from testbed.kept import Kept

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs")

SAVES = """
import os
import launcher_worker as worker
resumed = worker.resume_from()
for step in range(worker.knobs().steps):
    worker.log(step + 1, loss=1.0)
worker.save(worker.knobs().steps, lambda folder: open(os.path.join(folder, "weights"), "w").write("w"))
worker.done(worker.knobs().steps)
"""
JOB = (
    'name = "saves"\ncommand = ["python", "train.py"]\nsteps = 3\nsave_every_steps = 3\n[batch]\nglobal = 8\n'
)
VALUE = "hunter2hunter2"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A client that has a run that has ended, and its id."""
    made = Kept(tmp_path_factory.mktemp("ended"))
    made.client.script(SAVES)
    made.client.script(JOB, "saves.toml")
    run = made.client.detached("--job", "saves.toml")
    assert made.client.run("attach", run).returncode == 0
    made.keep()
    return made, run


@pytest.fixture
def launched(kept):
    """A client, and the id of a run of its own that has ended."""
    made, run = kept
    client = made.put_back()
    yield client, run
    client.end_commands()


def on_host(client, run):
    return client.home / ".launch" / "runs" / run


def rewrite(client, run):
    """Make the host's plan ask for a variable that nobody named."""
    plan = on_host(client, run) / "control" / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "secrets": ["MY_CLOUD_CRED"]}))


def asked_for(client, run):
    """The secrets in the host's plans of the runs that continue this one."""
    plans = [
        path / "control" / "plan.json" for path in on_host(client, run).parent.iterdir() if path.name != run
    ]
    return [json.loads(plan.read_text())["secrets"] for plan in plans]


def test_a_plan_that_its_host_has_changed_is_not_believed(launched, monkeypatch):
    """`resume` uses the plan of the launch: a variable that it does not name stays here."""
    client, run = launched
    rewrite(client, run)
    monkeypatch.setenv("MY_CLOUD_CRED", VALUE)
    done = client.run("resume", run, "--set", "steps=6", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked_for(client, run) == [[]]


def test_the_plan_is_here_before_the_host_has_said_anything(launched):
    """The copy of a launch is the client's own; the host's is the same until somebody changes it."""
    client, run = launched
    before = (client.runs / run / "plan.json").read_bytes()
    assert before == (on_host(client, run) / "control" / "plan.json").read_bytes()
    known = json.loads((client.index / run / "run.json").read_text())["plan"]
    assert hashlib.sha256(before).hexdigest() == known
    rewrite(client, run)
    assert client.run("logs", run).returncode == 0
    assert (client.runs / run / "plan.json").read_bytes() == before


def test_secrets_that_another_clients_plan_names_are_asked_about_first(launched, tmp_path, monkeypatch):
    """On another computer the plan is the host's word: each secret is named, and sent only with --yes."""
    client, run = launched
    rewrite(client, run)
    other = Client(tmp_path / "other")
    other.home = client.home
    other.variables["XDG_DATA_HOME"] = str(tmp_path / "index of the other computer")
    monkeypatch.setenv("MY_CLOUD_CRED", VALUE)
    refused = other.run("resume", run, "--host", "local", "--set", "steps=6")
    assert refused.returncode == 3
    assert "MY_CLOUD_CRED" in refused.stderr
    assert f"launch resume --yes {run.rpartition('-')[2]}" in refused.stderr
    assert asked_for(client, run) == []
    sent = other.run("resume", run, "--host", "local", "--set", "steps=6", "--yes", "--quiet")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert asked_for(client, run) == [["MY_CLOUD_CRED"]]


def test_a_run_of_the_same_name_in_another_root_leaves_the_copy_as_it_is(launched):
    """Two roots with one id: every verb that would mix the two is refused, and says what to do."""
    client, run = launched
    second = client.home / "second"
    (second / "runs").mkdir(parents=True)
    shutil.copytree(on_host(client, run), second / "runs" / run, symlinks=True)
    local_copy = client.runs / run
    before = {path: path.read_bytes() for path in local_copy.rglob("*") if path.is_file()}
    client.script(f"[hosts.local]\nroot = '{second}'\n", "launch.toml")
    for verb in (["attach"], ["logs"], ["pull"], ["resume"], ["rm", "--force"]):
        done = client.run(*verb, "--host", "local", run)
        assert done.returncode == 1, (verb, done.stdout, done.stderr)
        assert "launched in another root" in done.stderr
        assert f"launch rm --here --force {run.rpartition('-')[2]}" in done.stderr
    assert {path: path.read_bytes() for path in local_copy.rglob("*") if path.is_file()} == before
    assert (second / "runs" / run / "control" / "plan.json").is_file()
    assert client.run("logs", run).returncode == 0  # where it was launched it is still known


def test_a_root_that_was_set_up_anew_is_said(launched):
    """The runs of the old one are gone, and nothing is claimed about them."""
    client, run = launched
    shutil.rmtree(client.home / ".launch")
    done = client.run("attach", run)
    assert done.returncode == 1
    assert f"launch rm --here --force {run.rpartition('-')[2]}" in done.stderr
    assert client.run("rm", "--here", "--force", run).returncode == 0
    assert not (client.runs / run).exists()
