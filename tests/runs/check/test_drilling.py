"""`launch drill` on this machine: what it says, what it leaves, and that it does not believe what it is told."""

import json
import os
import re
import signal
import time

import pytest
from testbed.client import processes_of, until

pytestmark = pytest.mark.slow(reason="launches a job for each fault")


def fake(client, monkeypatch, name, script):
    """Put a program of that name before the others on PATH."""
    folder = client.home / "bin"
    folder.mkdir()
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    monkeypatch.setitem(client.variables, "PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def left(client):
    """What is there of a drill: runs and ledgers of the host, and processes by /proc."""
    root = client.home / ".launch"
    return [*root.glob("runs/*"), *root.glob("cache/*"), *processes_of(root / "runs")]


def local_copies(client):
    return [path.name for path in client.runs.glob("[0-9]*")]


@pytest.mark.long
def test_a_drill_tells_each_fault_and_leaves_its_ledgers_alone(client):
    """Rows, exit code, and no run here or there."""
    done = client.run("drill", "--fault", "trainer-killed@7", "--fault", "link-cut", "--fault", "hang")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^trainer-killed@7 +ok +preempted .* resuming from step 5 +[0-9] ", done.stdout)
    assert re.search(r"(?m)^link-cut +ok +- +- +0 ", done.stdout)
    assert re.search(r"(?m)^hang +ok +hang .* resuming from step 10", done.stdout)
    assert "3 of 3 as expected on local, native; ledgers in runs/drills/local-" in done.stdout
    assert "3 faults on local, native: about 1 min" in done.stderr
    assert left(client) == []
    assert local_copies(client) == []
    (folder,) = (client.runs / "drills").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "hang.jsonl",
        "link-cut.jsonl",
        "trainer-killed@7.jsonl",
    ]


@pytest.mark.long
def test_what_is_left_fails_a_row_and_its_record_is_kept(client, monkeypatch):
    """Here the host's own `ps` says that a process is left, whatever the run says of itself."""
    script = '#!/bin/sh\n/bin/ps "$@"\nfor one in "$HOME"/.launch/cache/drill-*; do [ ! -d "$one" ] || echo "4194000 ${one##*/}"; done\n'
    fake(client, monkeypatch, "ps", script)
    done = client.run("drill", "--fault", "trainer-killed", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["result"] == "failed"
    assert any(problem.startswith("left on the host: process 4194000 drill-") for problem in row["problems"])
    assert local_copies(client) == [row["run"]]
    assert client.run("logs", row["run"]).returncode == 0
    assert left(client) == []


def test_what_cannot_be_brought_about_is_not_run_and_says_why(client, monkeypatch):
    """No user namespaces: no small folder. The exit code is 0: nothing failed."""
    fake(client, monkeypatch, "unshare", "#!/bin/sh\nexit 1\n")
    done = client.run("drill", "--fault", "folder-full")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^folder-full +not run", done.stdout)
    assert "folder-full: this user may make no namespace there" in done.stdout
    assert "0 of 0 as expected" in done.stdout
    assert left(client) == []


def test_a_job_that_the_host_refuses_is_not_run(client):
    """The gate's reason is told; nothing has failed."""
    done = client.run("drill", "--profile", "l40s", "--fault", "hang")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^hang +not run", done.stdout)
    assert "has no GPU that launcher sees" in done.stdout
    assert left(client) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_drill_leaves_nothing(client, number):
    """Wherever the row is: the run is stopped and removed."""
    process = client.start("drill", "--fault", "hang", "--fault", "trainer-killed")
    until(lambda: list(client.home.glob(".launch/cache/drill-*/ledger.jsonl")), "the training")
    time.sleep(1.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 128 + number, out + err
    assert "Traceback" not in err
    assert "interrupted after 0 faults: the begun run was removed" in err
    assert left(client) == []
    assert local_copies(client) == []


def test_a_dry_run_lists_the_faults_and_launches_nothing(client):
    """As a table, and as JSON."""
    told = json.loads(client.ok("drill", "--dry-run", "--json"))
    assert (told["kind"], told["host"], told["runtime"]) == ("faults", "local", "native")
    assert {"trainer-killed", "link-cut", "hang"} <= {one["fault"] for one in told["faults"]}
    assert "job-requeued" not in {one["fault"] for one in told["faults"]}
    out = client.ok("drill", "--dry-run")
    assert "the training sleeps for ever" in out
    assert not client.runs.exists()
    assert left(client) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fault", "agent-kiled"], "agent-killed"),
        (["--fault", "hang@99"], "the step is a number from 1 to 39"),
        (["--fault", "job-requeued"], "only with runtime slurm"),
        (["--host", "nowhere-at-all"], "nowhere-at-all"),
    ],
)
def test_a_mistake_is_told_before_anything_is_launched(client, words, told):
    """With the nearest name, or the range."""
    done = client.run("drill", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert not client.runs.exists()
