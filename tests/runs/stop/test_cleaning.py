"""What may go from a host and from here: runs that have ended, and what no run names; nothing that a run still needs."""

import json
import os
import shutil
import subprocess
import threading

import pytest
from testbed.client import processes_of, until

from launcher.agent.store.store import Store

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs")


@pytest.fixture
def root(client):
    """This machine's root, as that client sees it."""
    return client.home / ".launch"


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_that_has_ended_goes_from_its_host_and_on_request_from_here(client, root):
    """Whatever else is there stays; the record stays here, and can be read, until it is removed too."""
    client.script("print('hello')")
    client.ok("--", "python", "train.py")
    stays = next((root / "runs").iterdir()).name
    client.ok("--", "python", "train.py")
    goes = next(path.name for path in (root / "runs").iterdir() if path.name != stays)
    said = client.ok("rm", goes)
    assert f"{goes[-6:]} on local: " in said
    assert f"freed there; its record stays here (launch rm --here {goes[-6:]} removes it)" in said
    assert os.listdir(root / "runs") == [stays]
    assert client.ok("logs", goes) == "hello\n"
    assert client.summary(goes)["state"] == "succeeded"
    assert client.summary(goes)["problem"] is None
    assert "was freed before; its record here removed" in client.ok("rm", "--here", goes)
    assert sorted(path.name for path in client.runs.iterdir() if path.is_dir()) == [stays]
    assert client.run("rm", goes).returncode == 2


def test_a_run_that_somebody_else_removed_is_said_so(client, root):
    """The record here stays, and says how the run ended."""
    client.script("print('hello')")
    client.ok("--", "python", "train.py")
    (run,) = os.listdir(root / "runs")
    shutil.rmtree(root / "runs" / run)
    assert "local has no such run any more; its record stays here" in client.ok("rm", run)
    assert client.summary(run)["state"] == "succeeded"


def test_a_removed_run_ends_as_it_was_shown(client):
    """An attach has the steps of the record here, as the launch had."""
    client.script("for step in range(1, 4): print(f'step {step}/3 loss {1 / step}')")
    outcome = "3 steps, loss 1 → 0.3333"
    assert outcome in client.seen("--", "python", "train.py")
    client.ok("rm", "--yes", "last")
    assert outcome in client.seen("attach", "last")


@pytest.mark.parametrize("verb", ["rm", pytest.param("stop", marks=pytest.mark.long)])
def test_what_happens_to_last_is_confirmed(client, root, verb):
    """Without a terminal the run is named and nothing happens; --yes goes on."""
    client.script("import time; time.sleep(1000)" if verb == "stop" else "print(1)")
    run = client.detached("--", "python", "train.py")
    if verb == "rm":
        until(lambda: client.summary(run)["state"] == "succeeded", "its end")
    before = client.summary(run)["state"]
    done = client.run(verb, "last")
    assert done.returncode == 2
    assert done.stderr == f"last is {run}: name it, or add --yes\n  next   launch {verb} {run[-6:]}\n"
    assert client.summary(run)["state"] == before
    client.ok(verb, *(["--now"] if verb == "stop" else []), "--yes", "last")
    assert (root / "runs" / run).exists() == (verb == "stop")


DOWNLOADS = """
import os
place = os.path.join(os.environ["HF_HOME"], "hub", "model")
print("was there" if os.path.exists(place) else "downloads", os.environ["HF_HOME"], os.environ.get("HF_TOKEN_PATH"))
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, "w").close()
"""


@pytest.mark.long
def test_what_a_run_takes_from_a_hub_is_there_for_the_next_one_and_stays(client, root, monkeypatch):
    """Once a root, and no removal of a run takes it; the user's own place counts before ours, and a login stays."""
    for name in ("HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    client.script(DOWNLOADS)
    ours = f"{root}/cache/huggingface {client.home}/.cache/huggingface/token\n"
    first, second = (client.detached("--", "python", "train.py") for _ in range(2))
    client.ok("attach", first)
    assert client.ok("logs", first).endswith(ours)
    client.ok("attach", second)
    client.ok("rm", first, second)
    assert (root / "cache" / "huggingface" / "hub" / "model").exists()
    third = client.detached("--", "python", "train.py")
    client.ok("attach", third)
    assert client.ok("logs", third) == f"was there {ours}"
    monkeypatch.setenv("HF_HOME", str(client.home / "mine"))
    fourth = client.detached("--", "python", "train.py")
    client.ok("attach", fourth)
    assert client.ok("logs", fourth) == f"downloads {client.home}/mine None\n"


@pytest.mark.long
def test_a_run_that_lives_is_not_removed(client, root):
    """It is to be stopped first, which the message says."""
    client.script("import time; time.sleep(10000)")
    run = client.detached("--", "python", "train.py")
    done = client.run("rm", run)
    assert done.returncode == 1
    assert "launch stop" in done.stderr
    assert processes_of(root / "runs" / run)
    client.ok("stop", "--now", run)
    client.ok("rm", run)
    assert not (root / "runs" / run).exists()


def test_artifacts_that_lie_nowhere_else_stay_unless_forced(client, root):
    """A trained adapter that was never pulled is what the run was for."""
    client.script(
        "import os, launcher_worker as worker\n"
        "open(os.path.join(worker.knobs().artifacts, 'w'), 'w').write('x')\nworker.done(1)"
    )
    run = client.detached("--", "python", "train.py")
    until(lambda: client.summary(run)["state"] == "succeeded", "its end")
    done = client.run("rm", run)
    assert done.returncode == 1
    assert "launch pull" in done.stderr
    assert (root / "runs" / run / "work" / "artifacts" / "w").read_text() == "x"
    client.ok("rm", "--force", run)
    assert not (root / "runs" / run).exists()


def test_what_no_run_names_goes_and_what_one_names_stays(client, root):
    """`gc` says what would go, takes exactly that, and a second one finds nothing."""
    client.script("print(1)")
    client.script("x" * 1000, "model.bin")
    client.script('name = "a"\ncommand = ["python", "train.py"]\nmodel = "./model.bin"\n', "a.toml")
    client.ok("--job", "a.toml")
    first = next((root / "runs").iterdir()).name
    (client.project / "model.bin").unlink()
    client.script("print(2)")
    client.ok("--", "python", "train.py")
    (root / "agent" / "0123456789abcdef").mkdir()
    os.utime(root / "agent" / "0123456789abcdef", (1, 1))
    (root / "store" / "incoming" / "dead").mkdir(parents=True)
    client.ok("rm", first)
    before = files_below(root / "store")
    would = json.loads(client.ok("gc", "--dry-run", "--json"))
    assert files_below(root / "store") == before
    did = json.loads(client.ok("gc", "--json"))
    assert did["items"] == would["items"]
    assert {item["kind"] for item in did["items"]} >= {"file", "data", "broken upload", "old agent"}
    assert not any((root / item["path"]).exists() for item in did["items"])
    assert json.loads(client.ok("gc", "--json"))["items"] == []
    assert "ship" in client.seen("--", "python", "train.py")
    assert client.ok("logs") == "2\n"


def test_gc_waits_for_nobody_who_ships_and_takes_nothing_from_them(client, root):
    """While somebody sends a tree, `gc` says so and touches nothing."""
    client.script("print(1)")
    client.ok("--", "python", "train.py")
    store = Store(str(root))
    held, over = threading.Event(), threading.Event()

    def ship():
        with store.shared():
            held.set()
            over.wait(60)

    shipper = threading.Thread(target=ship)
    shipper.start()
    held.wait(10)
    try:
        done = client.run("gc")
        assert done.returncode == 4
        assert "try again" in done.stderr
    finally:
        over.set()
        shipper.join()
    client.ok("gc")


@pytest.mark.long
def test_a_run_of_an_unchanged_folder_sends_nothing(client, root):
    """The stage says so; a witness counts what arrived."""
    for number in range(150):
        client.script(f"x = {number}", f"module_{number}.py")
    client.script("import module_7; print(module_7.x)")
    assert "151 of 151 files sent" in client.seen("--", "python", "train.py")
    until(lambda: list((root / "store" / "spare").glob("*/stats.json")), "the spare copy")
    again = client.seen("--", "python", "train.py")
    assert "none to send" in again
    client.script("x = 7000", "module_7.py")
    assert "1 of 151 files sent" in client.seen("--", "python", "train.py")
    assert client.ok("logs") == "7000\n"
    runs = sorted((root / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    listed = [
        subprocess.check_output(["ls", "--hide=__pycache__", run / "work" / "code"], text=True).split()
        for run in runs
    ]
    assert listed[0] == listed[1] == listed[2]
    assert len(listed[0]) == 151
