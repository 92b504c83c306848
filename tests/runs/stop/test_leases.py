"""Cards of a host are leased: each has one holder at every moment, by a ledger that the trainings write outside their runs."""

import json
import os
import signal
import subprocess

import pytest
from testbed.client import is_gone, processes_of, until

from launcher.agent.system import process

pytestmark = pytest.mark.slow(reason="each test starts several clients and runs that compete")

LEDGER = """
import os, sys, time
card = os.environ["CUDA_VISIBLE_DEVICES"]
def note(what):
    with open(sys.argv[1], "a") as file:
        file.write("%s %s %d\\n" % (card, what, time.monotonic_ns()))
note("begin")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
time.sleep(float(sys.argv[3]))
note("end")
"""


@pytest.fixture
def cards(client, listed_cards):
    """Put cards into this machine, whose trainings note in a ledger when they hold one."""
    client.script(LEDGER)
    return listed_cards


def words(client, seconds=0.0, *more):
    """The words of a launch whose training holds its card until a file is there, and for some seconds after."""
    ledger, go = str(client.home / "ledger"), str(client.home / "go")
    train = ["python", "train.py", ledger, go, str(seconds)]
    return ["--profile", "titan_rtx", "--set", "attempts=9", *more, "--", *train]


def lines(client):
    path = client.home / "ledger"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def leases(client):
    """Who holds which card, by the files of the host alone."""
    folder = client.home / ".launch" / "hosts" / process.host_id() / "leases"
    found = sorted(path for path in folder.glob("GPU-*") if path.suffix == "")
    return {path.name: json.loads(path.read_text())["run"] for path in found}


@pytest.mark.long
def test_twenty_launches_at_once_share_four_cards_one_at_a_time(client, cards):
    """Each waits its turn; no card has two trainings at any moment, and none is left idle or claimed in the end."""
    cards(4)
    (client.home / "go").touch()
    started = [client.start("--detach", *words(client, 0.2, "--wait", "9m")) for _ in range(20)]
    for one in started:
        out, err = one.communicate(timeout=500)
        assert one.returncode == 0, out + err
    until(lambda: sum(line[1] == "end" for line in lines(client)) == 20, "twenty trainings", 300)
    used = {}
    for card, what, _ in sorted(lines(client), key=lambda line: int(line[2])):
        used.setdefault(card, []).append(what)
    assert sorted(used) == [f"GPU-card-{number}" for number in range(4)]
    for whats in used.values():
        assert whats == ["begin", "end"] * (len(whats) // 2)
    until(lambda: leases(client) == {}, "the cards to be given back")


@pytest.mark.long
def test_a_card_that_a_run_has_is_refused_with_its_name_and_another_is_taken(client, cards):
    """Exit 3, whose it is, and what to do; a second card is simply taken. Nothing is left of what was refused."""
    cards(2)
    first = client.detached(*words(client))
    second = client.detached(*words(client))
    assert leases(client) == {"GPU-card-0": first, "GPU-card-1": second}
    done = client.run(*words(client))
    assert done.returncode == 3
    assert f"gpu busy: leased by run {first} (running) on GPU 0" in done.stderr
    assert f"run {second} (running) on GPU 1" in done.stderr
    assert "--wait 30m" in done.stderr
    assert sorted(os.listdir(client.home / ".launch" / "runs")) == sorted([first, second])
    client.ok("stop", "--now", second)
    assert leases(client) == {"GPU-card-0": first}
    assert "GPU 1" in client.seen("--detach", *words(client))


@pytest.mark.long
def test_a_card_is_named_on_the_command_line(client, cards):
    """That one, or none; so many as the profile says, and what is no card is said at once."""
    cards(3)
    run = client.detached(*words(client, 0.0, "--gpus", "GPU-card-1"))
    assert leases(client) == {"GPU-card-1": run}
    for gpus, code, text in (
        ("GPU-card-1", 3, f"leased by run {run}"),
        ("GPU-card-9", 3, "has no TITAN RTX 24 GB GPU-card-9"),
        ("GPU-card-0,GPU-card-1", 3, f"leased by run {run}"),
        ("4", 3, "has 3 x NVIDIA TITAN RTX, not 4 x TITAN RTX 24 GB"),
        ("0", 2, "--gpus 0"),
        ("one", 2, "--gpus one"),
    ):
        done = client.run(*words(client, 0.0, "--gpus", gpus))
        assert done.returncode == code, done.stderr
        assert text in done.stderr
    assert "would refuse" not in client.planned(*words(client, 0.0, "--gpus", "2"))
    two = client.detached(*words(client, 0.0, "--gpus", "2"))
    assert leases(client) == {"GPU-card-0": two, "GPU-card-1": run, "GPU-card-2": two}
    assert "no cards to choose from" in client.run("--profile", "cpu", "--gpus", "1", "--", "true").stderr
    assert client.run("--wait", "soon", *words(client)).returncode == 2


def test_whoever_waits_sees_the_holder_gets_the_card_and_can_leave(client, cards):
    """The holder is shown while it lasts; Ctrl-C leaves nothing; the end of the holder begins the next."""
    cards(1)
    first = client.detached(*words(client))
    leaves = client.start(*words(client, 0.0, "--wait", "5m"))
    waits = client.start("--detach", *words(client, 0.0, "--wait", "5m"))
    for one in (leaves, waits):
        while f"wait: leased by run {first} (running) on GPU 0" not in (line := one.stderr.readline()):
            assert line
    leaves.send_signal(signal.SIGINT)
    _, err = leaves.communicate(timeout=180)
    assert leaves.returncode == 130
    assert "interrupted before the run began" in err
    assert os.listdir(client.home / ".launch" / "runs") == [first]
    (client.home / "go").touch()
    _, err = waits.communicate(timeout=120)
    assert waits.returncode == 0, err
    assert "no longer leased by run" in err
    until(lambda: not leases(client), "the end of the second run")
    (client.home / "go").unlink()
    client.detached(*words(client, 0.0, "--wait", "1m"))
    assert client.run(*words(client, 0.0, "--wait", "1s")).returncode == 3


@pytest.mark.long
def test_whoever_came_first_gets_the_card_first(client, cards):
    """Four that wait, begun in order; one without --wait does not slip in; one that leaves holds up nobody."""
    cards(1)
    client.script(LEDGER.replace('os.environ["CUDA_VISIBLE_DEVICES"]', 'os.environ["LAUNCH_RUN"]'))
    first = client.detached(*words(client))
    line = []
    for number in range(5):
        one = client.start("--detach", "--name", f"n{number}", *words(client, 0.3, "--wait", "9m"))
        while f"wait: leased by run {first}" not in (said := one.stderr.readline()):
            assert said
        line.append(one)
    leaves = line.pop(1)
    leaves.kill()
    leaves.communicate()
    (client.home / "go").touch()
    refused = []
    until(lambda: refused.append(client.run(*words(client))) or len(lines(client)) > 2, "the next")
    for one in line:
        out, err = one.communicate(timeout=120)
        assert one.returncode == 0, out + err
    until(lambda: sum(told[1] == "end" for told in lines(client)) == 5, "all of them")
    order = [run.split("-")[1] for run, what, _ in lines(client) if what == "begin"][1:]
    assert order == ["n0", "n2", "n3", "n4"]
    assert {done.returncode for done in refused} == {3}


def interrupted(client):
    """Launch a training that holds its card, and kill its agent and its keeper; return its run, and the pids of what they left."""
    run = client.detached(*words(client, 0.0, "--set", "restart=true"))
    folder = client.home / ".launch" / "runs" / run
    count = len(lines(client))
    until(lambda: len(lines(client)) > count or any(line[1] == "begin" for line in lines(client)), "it")
    agent = json.loads((folder / "record" / "0002" / "attempt.json").read_text())["agent"]["pid"]
    keeper = process.find(agent).parent
    trained = [pid for pid in processes_of(folder) if pid not in (agent, keeper)]
    for pid in (keeper, agent):
        os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(agent) and is_gone(keeper), "their end")
    return run, trained


def test_the_card_of_a_run_whose_agent_and_keeper_died_is_free_for_the_next_launch(client, cards):
    """Its training is ended by proof before; the run waits then, and goes on once the card is free again."""
    cards(1)
    run, trained = interrupted(client)
    other = client.detached(*words(client))
    assert all(is_gone(pid) for pid in trained)
    assert leases(client) == {"GPU-card-0": other}
    assert client.summary(run)["state"] == "interrupted"
    done = client.run("attach", run)
    assert done.returncode == 5, done.stderr
    assert f"GPU-card-0 is leased by run {other} (running)" in done.stderr
    assert client.summary(run)["state"] == "waiting"
    assert client.run("attach", run).returncode == 5
    assert leases(client) == {"GPU-card-0": other}
    client.ok("stop", "--now", other)
    (client.home / "go").touch()
    client.run("attach", run)
    until(lambda: client.summary(run)["state"] not in ("waiting", "running", "resuming"), "its end")
    assert [line[1] for line in lines(client)].count("begin") >= 3


@pytest.mark.long
def test_a_waiting_run_can_be_stopped(client, cards):
    """It holds nothing, so its end is written at the contact."""
    cards(1)
    run, _ = interrupted(client)
    client.detached(*words(client))
    assert client.run("attach", run).returncode == 5
    assert "stopped" in client.ok("stop", run)


@pytest.mark.long
def test_an_agent_that_comes_back_to_a_card_of_another_run_leaves_it_alone(client, cards):
    """As after a reboot, when the engine or a person starts it: `waiting: card`, exit 0, no training."""
    cards(1)
    run, _ = interrupted(client)
    other = client.detached(*words(client))
    until(lambda: len(lines(client)) == 2, "the other's training")
    root = client.home / ".launch"
    (agent_file,) = root.glob("agent/*/*.pyz")
    keep = ["python3", "-I", str(agent_file), "keep", str(root / "runs" / run)]
    assert subprocess.run(keep, env=client.env, timeout=60, check=False).returncode == 0
    row = client.summary(run, "--host", "local")
    assert (row["state"], row["reason"]) == ("waiting", "card")
    assert other in str(row["evidence"])
    assert leases(client) == {"GPU-card-0": other}
    assert len(lines(client)) == 2


@pytest.mark.parametrize(
    "unwritten",
    [
        pytest.param([], id="", marks=pytest.mark.long),
        pytest.param(["control/prepared.json", "record/0001/attempt.json"], id="at once"),
    ],
)
def test_a_launch_that_is_killed_before_its_start_leaves_no_lease(client, cards, unwritten):
    """Client and `serve` SIGKILLed between lease and start, or lease and record: the next launch has the card at once."""
    cards(1)
    (client.project / "big").write_bytes(os.urandom(60_000_000))
    killed = client.start(*words(client))
    until(lambda: leases(client), "the lease")
    (run,) = leases(client).values()
    serves = [pid for pid in children(killed.pid) if process.find(pid)]
    for pid in (*serves, killed.pid):
        os.kill(pid, signal.SIGKILL)
    killed.communicate()
    until(lambda: all(is_gone(pid) for pid in serves), "the disk to let `serve` go")
    for name in unwritten:
        (client.home / ".launch" / "runs" / run / name).unlink(missing_ok=True)
    (client.project / "big").unlink()
    again = client.detached(*words(client))
    assert leases(client) == {"GPU-card-0": again}
    assert again != run


def children(pid):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(one) for one in listed.stdout.split()]
