"""A batch whose items are pushed to Kaggle's stand-in and to machines rented at Lambda Cloud's, beside this machine."""

import collections
import csv
import random
import signal
import sys

import pytest
from testbed.batches import batches_for
from testbed.client import until

pytestmark = pytest.mark.slow(reason="each test starts several runs")
FULL = """
import errno
from launcher.errors import RunError
from launcher.batch import batch_queue
step = batch_queue.BatchQueue.step
def refusing(self, item, state, **more):
    if state == "confirmed":
        raise RunError("queue.sqlite: no space left")
    return step(self, item, state, **more)
batch_queue.BatchQueue.step = refusing
from launcher.cli import main
main()
"""
"""A client whose disk is full as soon as a run has begun."""


@pytest.fixture
def made(client, ssh_host, kaggle_account, lambda_cloud):
    """A client with several hosts, among them `k`, an account of Kaggle's, and `rented`, one of Lambda Cloud's."""
    path = client.project / "launch.toml"
    tables = [path.read_text()]  # the last fixture's
    kaggle_account.host()
    tables.append(path.read_text())
    path.write_text("\n".join(tables))
    with batches_for(client, ssh_host) as batches:
        yield batches


def results(made):
    """What came home of each item's run."""
    return sorted(path.read_text() for path in made.client.runs.glob("[0-9]*/outputs/out/result"))


@pytest.mark.long
def test_items_run_at_every_kind_of_place(made, kaggle_account, lambda_cloud):
    """Each once, by the accounts of the places; what was rented is gone, and what was pushed too."""
    items = made.items(6)
    for item, host in zip(items, ["local", "A", "k", "k", "rented", "rented"], strict=True):
        item["host"] = host
        item["profile"] = "a100_40gb" if host == "rented" else "cpu"
    done = made.client.run("batch", made.write(items, max_cost=40), "--yes", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(made) == [item["name"] for item in items]
    assert made.noted("begin") == collections.Counter(item["name"] for item in items)
    rows = made.rows()
    pushed = [f"alice/launch-{rows[name]['run']}-1/1" for name in ("i3", "i4")]
    assert sorted(kaggle_account.pushes()) == sorted(pushed)
    assert kaggle_account.kernels() == []
    assert len(lambda_cloud.service.of("launch")) == 2
    assert {rental.intent.run for rental in lambda_cloud.rentals()} == {
        rows[name]["run"] for name in ("i5", "i6")
    }
    assert lambda_cloud.ours() == []


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("host", ["k", "rented"])
def test_a_worker_that_is_killed_pushes_and_rents_nothing_twice(
    made, kaggle_account, lambda_cloud, host, count, when
):
    """At each transition of an item; the next command goes on, and nothing that is paid for is left."""
    (item,) = made.items(1, host=host, profile="a100_40gb" if host == "rented" else "cpu")
    file = made.write([item], max_cost=40)
    made.dying(count, when)
    process = made.client.start("batch", file, "--yes")
    process.communicate(timeout=120)
    assert process.returncode == -9
    made.living()
    done = made.client.run("batch", "resume", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(made) == ["i1"]
    assert made.noted("begin") == {"i1": 1}
    run = made.rows()["i1"]["run"]
    if host == "k":
        assert kaggle_account.pushes() == [f"alice/launch-{run}-1/1"]
        assert kaggle_account.kernels() == []
        return
    assert lambda_cloud.ours() == []
    made.client.ok("reconcile")
    begun = [rental for rental in lambda_cloud.rentals() if rental.state != "refused"]
    assert {rental.intent.run for rental in begun} == {run}
    assert len(lambda_cloud.service.of("launch")) == len(begun) == 1


@pytest.mark.long
def test_what_a_killed_worker_rented_for_nothing_is_ended_before_more_is_rented(made, lambda_cloud):
    """Its machine would be paid for until its limit, and leave nothing of the batch's to the next one."""
    service, victims = lambda_cloud.service, []

    def kill(line):
        if line["call"] == "launch":
            service.after = lambda _line: None
            until(lambda: victims, "the worker")
            victims[0].kill()
            victims[0].wait()

    service.after = kill
    file = made.write(made.items(1, host="rented", profile="a100_40gb"), max_cost=8.5)
    victims.append(made.client.start("batch", file, "--yes"))
    victims[0].communicate(timeout=120)
    assert victims[0].returncode == -9
    (left,) = lambda_cloud.ours()
    done = made.client.run("batch", "resume", timeout=90)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{left}: no process here manages it, so it was ended" in done.stdout + done.stderr
    assert results(made) == ["i1"]
    calls = [(line["call"], (line["body"] or {}).get("instance_ids")) for line in service.calls]
    launches = [number for number, (call, _) in enumerate(calls) if call == "launch"]
    assert len(launches) == 2
    assert launches[0] < calls.index(("terminate", [left])) < launches[1]
    assert lambda_cloud.ours() == []


LOST, BUSY, BROKEN = {"kind": "lost"}, {"kind": "status", "status": 429}, {"kind": "status", "status": 503}


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "fault"),
    [("SaveKernel", LOST), ("SaveKernel", BUSY), ("SaveKernel", BROKEN), ("GetKernelSessionStatus", BROKEN)],
)
def test_what_kaggle_fails_to_answer_is_pushed_once(made, kaggle_account, call, fault):
    """The same command goes on by itself."""
    kaggle_account.hurry()
    kaggle_account.service.fail(call, **fault)
    done = made.client.run("batch", made.write(made.items(1, host="k")), timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert kaggle_account.service.faults[call] == []
    assert results(made) == ["i1"]
    assert made.noted("begin") == {"i1": 1}
    (push,) = kaggle_account.pushes()
    assert push.startswith(f"alice/launch-{made.rows()['i1']['run']}-")


CUT, ACCEPTED = {"kind": "cut"}, {"kind": "accepted", "status": 503}
FAILING = {
    "SaveKernel": [CUT, BROKEN, LOST, BUSY, ACCEPTED],
    "GetKernel": [LOST, BUSY, BROKEN],
    "GetKernelSessionStatus": [LOST, BUSY, BROKEN],
    "ListKernelSessionOutput": [LOST, BUSY, BROKEN],
}
"""No push gets a good answer: of each five, the third and the last are accepted all the same."""


@pytest.mark.long
@pytest.mark.parametrize("seed", [5])
def test_what_fails_again_and_again_and_kills_of_the_worker_push_no_item_twice(made, kaggle_account, seed):
    """By the service's ledger and the items' own. A push that never arrived was made again under the next number."""
    kaggle_account.hurry()
    rng, service = random.Random(seed), kaggle_account.service
    items = made.items(3, host="k")
    words, killed = ["batch", made.write(items)], 0
    for _ in range(2):
        for call, faults in FAILING.items():
            for fault in faults:
                service.fail(call, **fault)
        process, enough = made.client.start(*words), len(service.calls()) + rng.randint(4, 12)
        until(lambda process=process, enough=enough: process.poll() or len(service.calls()) > enough, "calls")
        killed += process.poll() is None
        process.kill()
        process.communicate()
        words = ["batch", "resume"]
    done = made.client.run(*words, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert killed == 2
    names = [item["name"] for item in items]
    assert made.noted("begin") == made.noted("end") == collections.Counter(names)
    assert results(made) == names
    pushes = [push.rpartition("-") for push in kaggle_account.pushes()]
    runs = [f"alice/launch-{row['run']}" for row in made.rows().values()]
    assert sorted(run for run, _, _ in pushes) == sorted(runs)
    assert {number for _, _, number in pushes} > {"1/1"}
    assert kaggle_account.kernels() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "fault"),
    [("launch", LOST), ("launch", BUSY), ("launch", BROKEN), ("instances", BROKEN), ("terminate", LOST)],
)
def test_what_lambda_cloud_fails_to_answer_is_rented_once(made, lambda_cloud, call, fault):
    """The same command goes on, or the next one does; nothing that is paid for is left."""
    lambda_cloud.service.fail(call, **fault)
    file = made.write(made.items(1, host="rented", profile="a100_40gb"), max_cost=40)
    done = made.client.run("batch", file, "--yes", timeout=300)
    if done.returncode != 0:
        done = made.client.run("batch", "resume", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(made) == ["i1"]
    assert made.noted("begin") == {"i1": 1}
    made.client.ok("reconcile")
    lambda_cloud.until_gone()


@pytest.mark.long
def test_who_leaves_a_batch_hears_who_ends_its_rents(made, lambda_cloud):
    """As who leaves a launch does, with the line for cron; what it has cost is in the list and the table."""
    made.hold()
    file = made.write(made.items(1, host="rented", profile="a100_40gb"), max_cost=40)
    process = made.client.start("batch", file, "--yes")
    until(lambda: made.noted("begin").total() == 1, "the item", timeout=90)
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert "downloads its files, then terminates the machine" in err
    (rental,) = lambda_cloud.rentals()
    assert f"launch reconcile --adopt {rental.instance}" in err
    assert "crontab" in err
    made.go_on()
    lambda_cloud.until_gone()
    done = made.client.run("batch", "resume", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    (rental,) = lambda_cloud.rentals()
    assert made.rows()["i1"]["cost"] == rental.cents / 100 > 0
    dollars = f"{rental.cents / 100:.2f}"
    assert f"${dollars} of $40.00" in done.stderr
    assert f"${dollars}" in made.client.ok("batch", "status").splitlines()[1]
    with (made.client.runs / "batches" / "sweep" / "results.csv").open(newline="") as file:
        assert [row["cost"] for row in csv.DictReader(file)] == [dollars]


@pytest.mark.long
def test_a_disk_that_fills_up_as_a_rented_run_begins_leaves_no_rent(made, lambda_cloud):
    """A process in the background brings its files home; the next command finds that it has ended."""
    file = made.write(made.items(1, host="rented", profile="a100_40gb"), max_cost=40)
    made.client.is_forked, made.client.program = False, [sys.executable, "-c", FULL]
    done = made.client.run("batch", file, "--yes", timeout=120)
    made.living()
    assert done.returncode == 5, done.stderr + done.stdout
    assert "downloads its files, then terminates the machine" in done.stderr
    lambda_cloud.until_gone()
    assert made.client.run("batch", "resume", timeout=120).returncode == 0
    assert made.noted("begin") == {"i1": 1}
    assert results(made) == ["i1"]


@pytest.mark.long
def test_a_run_whose_rented_machine_is_gone_can_be_stopped(made, lambda_cloud):
    """It has failed then, with the reason, and may be run again."""
    made.hold()
    file = made.write(made.items(1, host="rented", profile="a100_40gb"), max_cost=40)
    process = made.client.start("batch", file, "--yes")
    until(lambda: made.noted("begin").total() == 1, "the item", timeout=90)
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    process.kill()
    process.communicate()
    (rental,) = lambda_cloud.rentals()
    made.client.ok("reconcile", "--adopt", rental.instance, "--force")
    lambda_cloud.until_gone()
    done = made.client.run("batch", "resume")
    assert done.returncode == 5
    assert "its rented machine is gone" in done.stdout
    assert made.client.run("batch", "stop", "--yes").returncode == 0
    row = made.rows()["i1"]
    assert (row["state"], "its rented machine is gone" in row["why"]) == ("failed", True)
    made.go_on()
    assert made.client.run("batch", "resume", "--failed", timeout=120).returncode == 0
    assert made.noted("end") == {"i1": 1}


def test_what_is_rented_stays_within_the_limit_of_the_batch(made, lambda_cloud):
    """As long as one machine might cost nearly all of it, there is one at a time, by the stand-in's own account."""
    items = made.items(2, host="rented", profile="a100_40gb")
    done = made.client.run("batch", made.write(items, max_cost=8.5), "--yes", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "$7.96 kept for machines that are rented, and this item may cost $7.96" in done.stdout
    first, second = sorted(lambda_cloud.rentals(), key=lambda rental: rental.intent.time)
    assert first.ended <= second.intent.time
    assert sum(rental.cents for rental in (first, second)) <= 850
