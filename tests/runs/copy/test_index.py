"""The index alone says whom a verb contacts; a copy below runs/ is data. Witnesses: markers that a hostile program leaves, the files."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from testbed.client import Client
from testbed.kept import Kept

from launcher.copy import index
from launcher.values.host import Host

RUN = "261128-x-abc123"
PRINTS = "print('trained')\n"
pytestmark = pytest.mark.slow(reason="each test starts several clients")


def entry(run=RUN, **values):
    return index.IndexEntry(
        **{
            "run": run,
            "host": Host(name="lab", address="lab.example"),
            "root": "a" * 32,
            "launched": 1.0,
            **values,
        }
    )


def entry_file(client, run):
    return client.home / ".local/share/launch/runs" / run / "run.json"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A client that has a run that has ended, and its id."""
    made = Kept(tmp_path_factory.mktemp("ended"))
    made.client.script(PRINTS)
    run = made.client.detached("--", "python", "train.py")
    assert made.client.run("attach", run).returncode == 0
    made.keep()
    return made, run


@pytest.fixture
def ended(kept):
    """A client, and the id of a run of its own that has ended."""
    made, run = kept
    client = made.put_back()
    yield client, run
    client.end_commands()


# entries


def test_an_entry_is_as_it_was_written():
    made = entry(copies=("/a/runs",), order=3)
    index.create(made)
    assert index.find(RUN) == made
    assert index.runs().keys() == {RUN}
    assert index.place(RUN).stat().st_mode & 0o777 == 0o700


def test_an_entry_that_is_there_is_not_written_over():
    """Two commands make the same entry: the second hears of the first."""
    index.create(entry(root="a" * 32))
    with pytest.raises(FileExistsError):
        index.create(entry(root="b" * 32))
    assert index.find(RUN).root == "a" * 32


def test_a_torn_entry_counts_as_none_and_is_replaced():
    index.create(entry())
    (index.place(RUN) / "run.json").write_bytes(b'{"version":1,"run":"2611')
    assert index.find(RUN) is None
    index.create(entry(order=2))
    assert index.find(RUN).order == 2


def test_an_entry_of_another_run_counts_as_none():
    """A folder that was copied under another name names no run."""
    index.create(entry())
    other = "261128-x-def456"
    shutil.copytree(index.place(RUN), index.place(other))
    assert index.find(other) is None


def test_a_full_disk_leaves_no_entry(tmp_path, monkeypatch):
    """What cannot be written whole is not there."""
    from launcher.copy import index as module

    def refuse(*_paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", refuse)
    with pytest.raises(OSError, match="No space"):
        index.create(entry())
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert index.find(RUN) is None


# a launch


def test_a_run_is_in_the_index_before_it_begins(ended):
    client, run = ended
    known = json.loads(entry_file(client, run).read_text())
    assert known["host"]["name"] == "local"
    assert known["machine"].startswith(os.uname().nodename)
    assert known["copies"] == [str(client.runs)]
    assert not (client.runs / run / "client.json").exists()


def test_a_launch_without_an_index_begins_nothing(client):
    """Where the index cannot be written, nothing is begun on the host."""
    client.script(PRINTS)
    (client.home / ".local/share").mkdir(parents=True)
    (client.home / ".local/share/launch").write_text("a file")
    done = client.run("--detach", "--", "python", "train.py")
    assert done.returncode == 1
    assert "nothing was begun" in done.stderr
    assert not list((client.home / ".launch/runs").glob("*/control/pid"))


# from every folder


def test_ps_lists_runs_from_every_folder_and_says_where(ended, tmp_path):
    client, run = ended
    launched, client.project = client.project, tmp_path / "other"
    client.project.mkdir()
    rows = json.loads(client.ok("ps", "--json"))["runs"]
    assert [row["run"] for row in rows] == [run]
    assert rows[0]["folder"] == str(launched / "runs")
    assert "in ~" in client.ok("ps") or str(launched) in client.ok("ps")
    assert json.loads(client.ok("ps", "--here", "--json"))["runs"] == []
    assert "trained" in client.ok("logs", run)
    assert not client.runs.exists()


def test_last_means_this_folder_first(ended, tmp_path):
    client, first = ended
    here = client.project
    client.project = tmp_path / "other"
    client.project.mkdir()
    assert first in client.ok("ls", "last", "--json")
    client.script(PRINTS)
    second = client.detached("--", "python", "train.py")
    assert second in client.ok("ls", "last", "--json")
    client.project = here
    assert first in client.ok("ls", "last", "--json")


def test_a_copy_that_was_moved_with_its_project_is_found(ended, tmp_path):
    """The plan's digest says that it is the same run; the path is a hint only."""
    client, run = ended
    client.project.rename(tmp_path / "moved")
    client.project = tmp_path / "moved"
    assert "trained" in client.ok("logs", run)
    assert json.loads(client.ok("ps", "--here", "--json"))["runs"][0]["run"] == run


def test_a_plan_that_was_changed_is_not_resumed(ended):
    client, run = ended
    plan = client.runs / run / "plan.json"
    plan.write_text(plan.read_text().replace("train.py", "evil.py"))
    done = client.run("resume", run, "--set", "steps=3")
    assert done.returncode == 2
    assert "is not the plan of" in done.stderr


# foreign runs


@pytest.fixture(scope="module")
def foreign(kept, tmp_path_factory):
    """A second user in a git clone that has the first one's run; the marker says that its program ran. No test changes anything there."""
    made, run = kept
    client, tmp_path = made.put_back(), tmp_path_factory.mktemp("foreign")
    marker = tmp_path / "ran"
    program = client.project / "evil.sh"
    program.write_text(f'#!/bin/sh\ntouch {marker}\nexec python3 "$@"\n')
    program.chmod(0o755)
    (client.runs / ".gitignore").unlink()
    record = {
        "version": 1,
        "run": run,
        "host": {"name": "local", "python": "./evil.sh"},
        "root": "",
        "launched": 1.0,
    }
    (client.runs / run / "client.json").write_text(json.dumps({**record, "order": 1, "plan": ""}))
    commit = ["-c", "user.email=a@b", "-c", "user.name=n", "commit", "-qm", "x"]
    for words in (["init", "-q"], ["add", "-fA"], commit):
        subprocess.run(["git", *words], cwd=client.project, check=True)
    other = Client(tmp_path / "victim")
    subprocess.run(["git", "clone", "-q", client.project, other.project], check=True, cwd=tmp_path)
    yield other, run, marker
    other.end_commands()


READING = [["logs"], ["metrics"], ["ls"], ["explain"], ["diagnose"]]
CONTACTING = [
    ["attach"],
    ["pull"],
    ["stop"],
    ["rm"],
    ["resume"],
    ["rerun"],
    ["recover"],
    ["exec"],
    ["shell"],
    ["cp"],
    ["forward"],
]
REST = {"exec": ["--", "true"], "cp": [":x", "."], "forward": ["80"]}


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_foreign_run_is_shown_as_foreign_and_no_host_is_asked(foreign, words):
    other, run, marker = foreign
    done = other.run(*words, run)
    assert "is foreign" in done.stderr
    assert "launch attach --host HOST" in done.stderr
    assert done.returncode in (0, 1)
    assert not marker.exists()
    assert not (other.home / ".launch").exists()


@pytest.mark.parametrize("words", CONTACTING, ids=lambda words: words[0])
def test_a_verb_that_reaches_a_host_refuses_a_foreign_run(foreign, words):
    other, run, marker = foreign
    rest = REST.get(words[0], [])
    first = [f"{run}{rest[0]}", *rest[1:]] if words[0] == "cp" else [run, *rest]
    done = other.run(*words, *first)
    assert done.returncode == 1
    assert "is foreign" in done.stderr
    assert f"launch attach --host HOST {run[-6:]}" in done.stderr
    assert not marker.exists()
    assert not (other.home / ".launch").exists()


def test_ps_names_foreign_runs_and_asks_nobody(foreign):
    other, run, marker = foreign
    assert "1 foreign run is here" in other.ok("ps")
    found = json.loads(other.ok("ps", "--json"))
    assert (found["runs"], found["foreign"]) == ([], [run])
    assert not marker.exists()
    assert not (other.home / ".launch").exists()


def test_attach_with_a_host_makes_a_run_ones_own(ended):
    """An index that was lost is made again by attach alone: after an upgrade, or on another computer."""
    client, run = ended
    shutil.rmtree(client.home / ".local/share/launch/runs")
    assert client.run("attach", run).returncode == 1
    assert client.run("attach", "--host", "local", run).returncode == 0
    known = json.loads(entry_file(client, run).read_text())
    plan = (client.home / ".launch/runs" / run / "control/plan.json").read_bytes()
    import hashlib

    assert known["plan"] == hashlib.sha256(plan).hexdigest()
    assert client.summary(run)["state"] == "succeeded"


def test_attach_all_enters_what_the_host_has(ended):
    client, run = ended
    shutil.rmtree(client.home / ".local/share/launch/runs")
    shutil.copytree(client.runs / run, client.runs / "261128-x-abc123")
    found = json.loads(client.ok("attach", "--host", "local", "--all", "--json"))
    assert (found["runs"], found["foreign"]) == ([run], ["261128-x-abc123"])
    assert client.summary(run)["state"] == "succeeded"


def test_attach_refuses_a_copy_with_another_plan(ended):
    """The host's plan is compared with the one in the copy that is here."""
    client, run = ended
    shutil.rmtree(client.home / ".local/share/launch/runs")
    plan = client.runs / run / "plan.json"
    plan.write_text(plan.read_text().replace("train.py", "evil.py"))
    done = client.run("attach", "--host", "local", run)
    assert done.returncode == 1
    assert "another plan" in done.stderr
    assert not entry_file(client, run).exists()
    assert "is foreign" in client.run("stop", run).stderr


def test_a_local_run_of_another_machine_is_not_looked_for_on_this_one(ended):
    """Two machines share one home: `local` means the machine of the launch."""
    client, run = ended
    file = entry_file(client, run)
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "other/12345678"}))
    done = client.run("stop", run)
    assert done.returncode == 1
    assert "is on other/12345678" in done.stderr
    assert "trained" in client.ok("logs", run)
    assert client.run("attach", "--host", "local", run).returncode == 0
    assert client.run("stop", run).returncode == 0


def test_two_clients_attach_one_run_at_once(ended):
    client, run = ended
    shutil.rmtree(client.home / ".local/share/launch/runs")
    both = [client.start("attach", "--host", "local", run, "--quiet") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert json.loads(entry_file(client, run).read_text())["run"] == run


def test_removing_the_last_copy_forgets_the_run(ended):
    client, run = ended
    client.ok("rm", "--here", "--force", run)
    assert not entry_file(client, run).exists()
    assert json.loads(client.ok("ps", "--json"))["runs"] == []


def test_removing_the_copy_in_a_project_that_was_moved_forgets_the_run(ended, tmp_path):
    """The folder that the index names is no longer there, and is no copy."""
    client, run = ended
    client.project.rename(tmp_path / "moved")
    client.project = tmp_path / "moved"
    client.ok("rm", "--here", "--force", run)
    assert not entry_file(client, run).exists()


def test_a_copy_that_was_removed_by_hand_is_fetched_again(ended, tmp_path):
    """Into the folder of the command, which the index knows then; git does not see it."""
    client, run = ended
    shutil.rmtree(client.runs)
    client.project = tmp_path / "other"
    client.project.mkdir()
    assert client.run("attach", run).returncode == 0
    assert "trained" in client.ok("logs", run)
    assert (client.runs / ".gitignore").read_text() == "*\n"
    assert str(client.runs) in json.loads(entry_file(client, run).read_text())["copies"]


def test_a_host_that_is_silent_costs_ps_no_more_than_its_wait(client, tmp_path):
    """Another live host is shown as it is. The silent one takes connections and says nothing."""
    import socket

    client.script("import time\ntime.sleep(600)\n")
    run = client.detached("--", "python", "train.py")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        known = json.loads(entry_file(client, run).read_text())
        host = {"name": "silent", "address": "127.0.0.1", "port": silent.getsockname()[1]}
        other = client.home / ".local/share/launch/runs" / RUN / "run.json"
        other.parent.mkdir()
        other.write_text(json.dumps({**known, "run": RUN, "host": host, "machine": None}))
        began = time.monotonic()
        rows = {row["run"]: row for row in json.loads(client.ok("ps", "--json", "--wait", "5s"))["runs"]}
        assert time.monotonic() - began < 60
    assert rows[RUN]["problem"].startswith("no answer within 5 s")
    assert rows[run]["problem"] is None
    client.run("stop", "--now", run)


def test_a_home_on_two_machines_whose_locks_do_not_reach_each_other_loses_no_run(tmp_path):
    """Launches enter runs as files of their own: without any lock, none is lost."""
    code = (
        "import fcntl, sys; fcntl.flock = lambda *_: None\n"
        "from launcher.copy import index; from launcher.values.host import Host\n"
        "for n in range(50):\n"
        " run = f'261128-x-{sys.argv[1]}{n:05d}'\n"
        " index.create(index.IndexEntry(run=run, host=Host(name='l'), root='a', launched=1.0, order=n))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, letter], env={**os.environ, "XDG_DATA_HOME": str(tmp_path)}
        )
        for letter in "ab"
    ]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(list((tmp_path / "launch/runs").glob("*/run.json"))) == 100


def test_an_index_that_cannot_be_read_is_said_so(client):
    """A file in its place; an entry that is a file."""
    client.index.parent.mkdir(parents=True)
    client.index.write_text("")
    done = client.run("ps")
    assert (done.returncode, "the index of your runs" in done.stderr) == (1, True)
    client.index.unlink()
    client.index.mkdir()
    (client.index / "261128-x-abc123").write_text("")
    assert "is damaged" in client.run("stop", "abc123").stderr
    client.variables["LAUNCH_RUNS"] = "x" * 5000
    assert client.run("ps").returncode == 2


def test_a_record_whose_copy_was_moved_is_not_forgotten_unasked(ended):
    """Its host has no copy any more, so none could be attached again."""
    client, run = ended
    client.ok("rm", run)
    client.runs.rename(client.runs.with_name("moved"))
    done = client.run("rm", "--here", run)
    assert "its local copy is not at" in done.stderr
    assert entry_file(client, run).exists()
    client.runs.with_name("moved").rename(client.runs)
    client.ok("rm", "--here", "--force", run)
    assert not entry_file(client, run).exists()
