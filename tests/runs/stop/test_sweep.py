"""What dead runs leave is ended and removed, by a launch or by `launch sweep`; strangers get no signal, by their own word.

Before and after are told by /proc and by what the processes themselves write down, never by our own report. More crashes, with
cards and in containers, are in test_leftovers.py.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from testbed.client import RECORDER, is_gone, orphan, processes_of, until
from testbed.spooler import Spooler
from testbed.toy import recorded_run

from launcher.agent.record.files import read_json, write_durably
from launcher.agent.system import process

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs")

HANGS = """
import os, sys, time
{before}
print("up", flush=True)
time.sleep(10000)
"""
TREE = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import signal, time; {ignore}; print('up', flush=True); time.sleep(10000)"]
subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleep)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def root(client):
    """This machine's root, as that client sees it."""
    return client.home / ".launch"


@pytest.fixture
def stranger(client):
    """Start a process that writes down every signal and that init adopts; none may have come when the test ends. Return its pid."""
    started = []

    def begin(env=None, before=(), arguments=()):
        log = client.home / f"signals-{len(started)}"
        words = [*before, sys.executable, "-c", RECORDER, *arguments]
        started.append((orphan(words, {**os.environ, **(env or {})}, log), log))
        until(lambda: "ready" in log.read_text(), "a stranger")
        return started[-1][0]

    yield begin
    for pid, log in started:
        assert not is_gone(pid)
        assert log.read_text() == "ready\n"
        kill(pid)


def begin(client, root, before="", count=1):
    """Launch a script that hangs; return the run's folder and the pids of its training, agent and keeper."""
    client.script(HANGS.format(before=before))
    run = root / "runs" / client.detached("--", "python", "train.py")
    until(lambda: (run / "record" / "0002" / "log.txt").read_text().count("up") == count, "the training")
    agent = json.loads((run / "record" / "0002" / "attempt.json").read_text())["agent"]["pid"]
    keeper = process.find(agent).parent
    trained = [pid for pid in processes_of(run) if pid not in (agent, keeper)]
    assert trained
    return run, trained, agent, keeper


def kill(*pids, number=signal.SIGKILL):
    for pid in pids:
        os.kill(pid, number)


def next_launch_succeeds(client):
    """As it is typed, untouched."""
    client.script("print('well')")
    return client.seen("--", "python", "train.py")


@pytest.mark.parametrize(
    "ignore",
    [
        pytest.param("pass", id="", marks=pytest.mark.long),
        pytest.param("signal.signal(15, signal.SIG_IGN)", id="deaf"),
    ],
)
def test_agent_and_keeper_killed_and_all_children_are_ended_by_the_next_launch(client, root, ignore):
    """A session of its own, a double fork, and one that ignores SIGTERM: by token, whatever they forked through."""
    run, trained, agent, keeper = begin(client, root, TREE.format(ignore=ignore), 3)
    assert len(trained) == 3
    kill(keeper, agent)
    until(lambda: is_gone(agent) and is_gone(keeper), "their end")
    assert not any(is_gone(pid) for pid in trained)
    said = next_launch_succeeds(client)
    assert all(is_gone(pid) for pid in trained)
    assert "ended 3 leftovers: pid" in said
    assert f"of {run.name[-6:]}" in said
    record = root / "hosts" / process.host_id() / "sweeps.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    signals = [(line["pid"], line["signal"]) for line in lines if line["kind"] == "signal"]
    assert {pid for pid, _ in signals} == set(trained)
    proof = next(line for line in lines if line["kind"] == "signal")
    assert proof["proof"] == "token"
    assert proof["run"] == run.name
    assert proof["state"] == "interrupted"
    assert proof["host_id"] == process.host_id()
    assert proof["boot_id"] == process.boot_id()
    assert client.ok("sweep") == "local: nothing is left over\n"


@pytest.mark.long
def test_what_takes_long_to_give_back_its_memory_is_waited_for(client, root):
    """A process that ends has no variables any more while the kernel takes back its pages, or a driver its card."""
    _, (trained,), agent, keeper = begin(client, root, "held = b'x' * (1 << 31)")
    kill(keeper, agent)
    until(lambda: is_gone(agent) and is_gone(keeper), "their end")
    said = next_launch_succeeds(client)
    assert is_gone(trained)
    assert f"ended 1 leftover: pid {trained} " in said
    assert "left alone" not in said


def test_what_the_training_gave_to_a_spooler_is_named_and_goes_on(client, root, tmp_path):
    """The training and its agent are killed: what is left of it is ended by the next launch, its job is not."""
    with Spooler(tmp_path) as spooler:
        lines, log = spooler.submit([sys.executable, "-c", RECORDER])
        run, trained, agent, keeper = begin(client, root, lines.strip())
        (job,) = (pid for pid in trained if b"signal.signal" in cmdline(pid))
        kill(keeper, agent)
        until(lambda: is_gone(agent) and is_gone(keeper), "their end")
        said = next_launch_succeeds(client)
        assert not is_gone(job)
        assert all(is_gone(pid) for pid in trained if pid != job)
        assert "ended 1 leftover: pid" in said
        assert f"· pid {job} (" in said
        assert f"of {run.name[-6:]}: left alone: handed over to {spooler.title}: not ended" in said
        (item,) = json.loads(client.ok("sweep", "--json"))["items"]
        assert (item["kind"], item["did"], item["run"]) == ("handed-over", "left", run.name)
        assert (item["receiver"], item["why"]) == (
            spooler.title,
            f"handed over to {spooler.title}: not ended",
        )
        shown = " ".join(client.ok("sweep", "--dry-run").split())
        assert f"handed over to {spooler.title}: not ended" in shown
        assert log.read_text() == "ready\n"


@pytest.mark.long
def test_a_run_whose_agent_was_stopped_can_be_stopped(client, root):
    """It is woken, so that it hears the wish; its keeper, stopped too, is ended once the run is over."""
    run, trained, agent, keeper = begin(client, root)
    kill(keeper, agent, *trained, number=signal.SIGSTOP)
    client.ok("stop", "--now", run.name)
    assert all(is_gone(pid) for pid in (*trained, agent))
    assert not is_gone(keeper)
    next_launch_succeeds(client)
    assert is_gone(keeper)


def test_a_zombie_that_a_stranger_does_not_collect_is_named_with_what_it_means(client, root, tmp_path):
    """The parent is the keeper of some other run, which has adopted it, and is left alone."""
    run = recorded_run(root, "0101-job-aaaa", "failed")
    code = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '1000'], env={'LAUNCH_TOKEN': sys.argv[1]})\ntime.sleep(1000)"
    adopter = {**os.environ, "LAUNCH_KEEPER": "1"}
    parent = subprocess.Popen([sys.executable, "-c", code, f"token-of-{run.id}"], env=adopter)
    try:
        child = until(lambda: children(parent.pid), "a child")[0]
        until(lambda: process.find(child).letter == "S" and b"sleep" in cmdline(child), "it to sleep")
        (item,) = json.loads(client.ok("sweep", "--json"))["items"]
        assert (item["kind"], item["did"], item["run"]) == ("zombie", "left", run.id)
        assert f"pid {parent.pid} (uid" in item["why"]
        assert parent.poll() is None
    finally:
        parent.kill()
        parent.wait()


SEES_ITSELF = """
import sys, time
import launcher_worker as worker
begun = worker.resume_from()
with open("{ledger}", "a") as ledger:
    ledger.write("begins\\n")
    for step in range(1, 100000):
        worker.log(step, loss=1.0)
        ledger.write("%d\\n" % step)
        ledger.flush()
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "way", ["stop", *(pytest.param(one, marks=pytest.mark.long) for one in ("sweep", "recover"))]
)
def test_a_training_beside_a_frozen_keeper_and_a_dead_agent_is_named_and_ended(client, root, tmp_path, way):
    """It goes on, as its ledger shows, and nobody records it; its keeper would bring the run back only if it were continued."""
    ledger = tmp_path / "ledger"
    client.script(SEES_ITSELF.format(ledger=ledger))
    name = client.detached("--", "python", "train.py")
    run = root / "runs" / name
    until(lambda: ledger.exists() and ledger.read_text().count("\n") > 3, "its steps")
    agent = json.loads((run / "record" / "0002" / "attempt.json").read_text())["agent"]["pid"]
    keeper = process.find(agent).parent
    trained = [pid for pid in processes_of(run) if pid not in (agent, keeper)]
    kill(keeper, number=signal.SIGSTOP)
    until(lambda: process.find(keeper).letter == "T", "its keeper to stop")
    assert client.summary(name)["state"] == "running"
    kill(agent)
    until(lambda: process.find(agent).letter == "Z", "the agent's end")
    unseen = ledger.read_text()
    row = client.summary(name)
    assert row["state"] == "interrupted"
    assert f"keeper pid {keeper} is stopped" in client.ok("ps")
    until(lambda: len(ledger.read_text()) > len(unseen), "steps that nobody sees")
    if way == "sweep":
        ended = [one["name"].split()[1] for one in items(client, "sweep") if one["kind"] == "process"]
        assert sorted(map(int, ended)) == sorted([keeper, *trained])
    else:
        client.ok(way, name)
    assert all(is_gone(pid) for pid in (keeper, *trained))
    if way == "recover":
        until(lambda: ledger.read_text().count("begins") == 2, "its next attempt")
        client.ok("stop", "--now", name)
    assert client.summary(name)["state"] == ("interrupted" if way == "sweep" else "stopped")


@pytest.mark.long
def test_the_agent_alone_killed_is_brought_back_and_none_of_its_processes_is_swept(client, root):
    """A live run is its keeper's. The folder of the dead agent's socket may go before it comes back."""
    _, trained, agent, _ = begin(client, root)
    kill(agent)
    until(lambda: all(is_gone(pid) for pid in trained), "the keeper's work")
    assert "leftover: pid" not in next_launch_succeeds(client)


def sockets(client):
    """The folders of agents' sockets, as `ls` shows them."""
    return subprocess.check_output(["ls", client.variables["TMPDIR"]], text=True).split()


@pytest.mark.parametrize(
    "way", ["the next attempt", *(pytest.param(one, marks=pytest.mark.long) for one in ("sweep", "gc"))]
)
def test_the_socket_folder_of_a_killed_agent_goes(client, root, way):
    """A living agent's stays meanwhile, also a stopped one's."""
    with tempfile.TemporaryDirectory() as folder:
        client.variables["TMPDIR"] = folder
        _, _, agent, keeper = begin(client, root, "import launcher_worker; launcher_worker.resume_from()")
        _, trained, stopped, _ = begin(client, root)
        before = sockets(client)
        assert len(before) == 2
        kill(stopped, number=signal.SIGSTOP)
        if way == "the next attempt":
            kill(agent)
            until(lambda: len(sockets(client)) == 2 and sockets(client) != before, "the next attempt")
        else:
            kill(keeper, agent)
            until(lambda: is_gone(agent), "its end")
            (item,) = [one for one in items(client, way, "--dry-run") if one["kind"] == "socket folder"]
            assert len(sockets(client)) == 2
            assert item in items(client, way)
            assert len(sockets(client)) == 1
        assert process.find(stopped) is not None
        kill(stopped, number=signal.SIGCONT)
        assert not any(map(is_gone, trained))


def items(client, *words):
    return json.loads(client.ok(*words, "--json"))["items"]


def test_strangers_get_no_signal(client, root, stranger):
    """Another user's, ours outside a run, our name in its command line, a live run's, another host's, a reused pid's."""
    live, trained, agent, keeper = begin(client, root)
    ended = recorded_run(root, "0101-job-aaaa", "failed")
    elsewhere = recorded_run(root, "0101-job-bbbb", "failed", place_id="0123456789abcdef")
    before = recorded_run(root, "0101-job-cccc", "failed", boot_id="an earlier one")
    token = {"LAUNCH_TOKEN": f"token-of-{ended.id}"}
    stranger()
    stranger(arguments=("launch", "supervise", f"{root}/runs/{ended.id}"))
    stranger(env={"LAUNCH_TOKEN": f"token-of-{elsewhere.id}", "LAUNCH_RUN": elsewhere.id})
    stranger(env={"LAUNCH_TOKEN": f"token-of-{before.id}", "LAUNCH_RUN": before.id})
    stranger(env={"LAUNCH_TOKEN": (live / "control" / "token").read_text()})
    stranger(env={"LAUNCH_TOKEN": token["LAUNCH_TOKEN"] + "x", "LAUNCH_RUN": ended.id})
    if os.geteuid() == 0:
        stranger(env=token, before=("setpriv", "--reuid=65534", "--clear-groups"))
    log = client.home / "ours"
    ours = orphan([sys.executable, "-c", RECORDER], {**os.environ, **token}, log)
    until(lambda: "ready" in log.read_text(), "what is left")
    reused = stranger()
    record = ended.folder(1)
    told = {**read_json(record.attempt), "agent": {"pid": reused, "start": "1"}}
    write_durably(record.attempt, json.dumps(told))
    assert "pid" in client.ok("sweep", "--dry-run")
    assert not is_gone(ours)
    next_launch_succeeds(client)
    client.ok("sweep")
    assert is_gone(ours)
    assert log.read_text().startswith(f"ready\n{signal.SIGTERM}\n")
    assert not any(is_gone(pid) for pid in (*trained, agent, keeper))


def test_a_live_run_of_another_host_in_the_same_home_is_left_alone(client, root, monkeypatch):
    """The same root, another host id: its locks and pids are not ours to judge."""
    monkeypatch.setitem(os.environ, "LAUNCH_HOST_ID", "0123456789abcdef")
    env = {**client.env, "LAUNCH_HOST_ID": "0123456789abcdef"}
    monkeypatch.setattr(type(client), "env", property(lambda _self: env))
    _, trained, agent, keeper = begin(client, root)
    kill(keeper, agent)
    monkeypatch.undo()
    assert "nothing is left over" in next_launch_succeeds(client)
    assert not any(is_gone(pid) for pid in trained)


def test_what_was_left_half_done_on_the_disk_goes_after_an_hour(client, root):
    """Uploads, copies, runs whose code never came, removals, temporary files; not what is young or held."""
    next_launch_succeeds(client)
    half = recorded_run(root, "0101-half-aaaa", "preparing")
    young = recorded_run(root, "0101-half-bbbb", "preparing")
    has_code = recorded_run(root, "0101-code-cccc", "preparing")
    os.mkdir(has_code.code)
    old = [
        root / "store" / "incoming" / "abcd" / "file",
        root / "store" / "data" / "part-x" / "file",
        root / "runs" / ".removed-0101-job-dddd" / "control" / "plan.json",
        root / "hosts" / process.host_id() / "evidence" / "x.json.4194999.tmp",
    ]
    kept = [
        root / "store" / "spare" / "part-y" / "file",
        root / "hosts" / process.host_id() / "evidence" / f"y.json.{os.getpid()}.tmp",
    ]
    for path in (*old, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    age(*old, *(path.parent for path in old[:3]), old[2].parents[1], half.path, has_code.path, kept[1])
    said = json.loads(client.ok("sweep", "--json", "--dry-run"))["items"]
    assert all(path.exists() for path in old)
    items = json.loads(client.ok("sweep", "--json"))["items"]
    assert items == said
    assert sorted(item["kind"] for item in items) == [
        "broken upload", "half-made copy", "half-made run", "removed run", "temporary file",
    ]  # fmt: skip
    assert {item["did"] for item in items} == {"removed"}
    assert not any(path.exists() for path in old)
    assert not os.path.exists(half.path)
    assert all(path.exists() for path in kept)
    assert os.path.exists(young.path)
    assert os.path.exists(has_code.path)


@pytest.mark.long
def test_a_sweep_with_nothing_to_do_takes_no_time(client, root):
    """The stage's own figure: some milliseconds, with two hundred runs on record."""
    for number in range(200):
        recorded_run(root, f"0101-job-a{number:03}", "succeeded")
    client.script("print('well')")
    lines = [json.loads(line) for line in client.ok("--json", "--", "python", "train.py").splitlines()]
    stage = next(line for line in lines if line.get("name") == "sweep")
    assert stage["text"] == "nothing is left over"
    assert stage["seconds"] < 2.0, "a bound against a wait, not a measurement"


def age(*paths):
    """Make files two hours older; a change of status is told by the clock, so that stands still for them."""
    then = time.time() - 7200
    for path in paths:
        os.utime(path, (then, then))


def children(pid):
    words = ["ps", "-o", "pid=", "--ppid", str(pid)]
    return [
        int(one) for one in subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    ]


def cmdline(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
