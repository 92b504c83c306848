"""What a batch has rented, when things go wrong around it: by the stand-in's own account nothing is billed that nobody ends."""

import signal
import sys

import pytest
from testbed.batches import batches_for
from testbed.client import until
from testbed.tables import mostly_long

from launcher.batch.batch_queue import BatchQueue
from launcher.batch.queued_item import ItemState

pytestmark = pytest.mark.slow(reason="each test rents")
BAD_DISK = """
import os
from launcher.errors import RunError
from launcher.batch import batch_queue
step = batch_queue.BatchQueue.step
def refusing(self, item, state, **more):
    if state == "ended" and item.host == "local":
        raise RunError("queue.sqlite: no space left")
    return step(self, item, state, **more)
batch_queue.BatchQueue.step = refusing
from launcher.cli import main
main()
"""
"""A client whose disk is full once an item on this machine has ended."""


@pytest.fixture
def made(client, ssh_host, lambda_cloud):
    """A client with several hosts, among them `rented`, an account of Lambda Cloud's."""
    with batches_for(client, ssh_host) as batches:
        yield batches


def rented(made, count, **keys):
    return made.items(count, host="rented", profile="a100_40gb", **keys)


def all_looked_after(cloud):
    """Whether each open rental has a process that looks after it."""
    found = [rental for rental in cloud.rentals() if rental.is_open]
    return bool(found) and all(cloud.ledger.is_held(rental.nonce) for rental in found)


def begun(made, *words, count=1):
    """Begin a batch of rented items; return its process once they run."""
    made.hold()
    process = made.client.start("batch", made.write(rented(made, count), max_cost=40), "--yes", *words)
    until(lambda: made.noted("begin").total() == count, "the items", timeout=90)
    until(lambda: {row["state"] for row in made.rows().values()} == {"running"}, "the transitions")
    return process


@pytest.mark.long
def test_a_reader_that_goes_away_leaves_each_machine_to_a_process(made, lambda_cloud):
    """As of `launch batch … | head -1`: each line more fails, and three machines are handed over all the same."""
    made.hold()
    process = made.client.start("batch", made.write(rented(made, 3), max_cost=40), "--yes")
    assert "begun" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=90) != 0
    until(lambda: all_looked_after(lambda_cloud), "processes that look after what is rented")
    assert len(lambda_cloud.ours()) == made.noted("begin").total() >= 1
    made.go_on()
    lambda_cloud.until_gone()
    done = made.client.run("batch", "resume", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert made.noted("begin") == made.noted("end") == {"i1": 1, "i2": 1, "i3": 1}
    assert lambda_cloud.ours() == []


@pytest.mark.long
def test_a_disk_that_is_full_as_the_batch_is_left_leaves_each_machine_to_a_process(made, lambda_cloud):
    """Two items of this machine end, which cannot be recorded, while a machine is rented for a third."""
    items = [*rented(made, 1), *made.items(3, host="local", steps=1)[1:]]
    items[0]["command"][3] = "2000"
    made.client.is_forked, made.client.program = False, [sys.executable, "-c", BAD_DISK]
    process = made.client.start("batch", made.write(items, max_cost=40, max_parallel=3), "--yes")
    until(lambda: made.noted("begin").total() == 3, "the items", timeout=90)
    _, said = process.communicate(timeout=180)
    made.living()
    assert process.returncode == 1
    assert "no space left" in said
    assert all_looked_after(lambda_cloud)


@pytest.mark.long
def test_a_keeper_that_is_killed_while_a_batch_follows_its_run_leaves_the_rent_to_that(made, lambda_cloud):
    """The batch was left, and resumed elsewhere; the process that its first command had left is killed then."""
    process = begun(made)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    (keeper,) = lambda_cloud.keepers()
    process = made.client.start("batch", "resume")
    log = made.client.runs / "batches" / "sweep" / "batch.log"
    until(lambda: "another process on this computer" in log.read_text(), "a worker that follows")
    lambda_cloud.end_keepers()
    until(lambda: lambda_cloud.keepers() == [process.pid], "the worker's hold on the machine")
    assert keeper != process.pid
    made.go_on()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert lambda_cloud.ours() == []


@pytest.mark.long
def test_what_is_left_while_it_boots_is_named(made, lambda_cloud):
    """Ctrl-C twice: nobody looks after the machine then, which is said with what ends it."""
    with lambda_cloud.service.holding("instances"):
        process = made.client.start("batch", made.write(rented(made, 1), max_cost=40), "--yes")
        until(lambda: lambda_cloud.ours(), "the launch", timeout=90)
        process.send_signal(signal.SIGINT)
        assert "waits for 1 launch on the way" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=180)
    assert (
        "i1: its rented machine is still billed, and no process will terminate it   launch reconcile" in said
    )
    made.client.ok("reconcile")
    assert lambda_cloud.ours() == []


@mostly_long("when", ["boot", "run"], ci=(0,))
def test_stop_ends_what_a_killed_worker_has_rented(made, lambda_cloud, when):
    """A machine that boots goes back at once; one whose run goes on, once that has stopped and its files are here."""
    if when == "run":
        process = begun(made)
        process.kill()
    else:
        with lambda_cloud.service.holding("instances"):
            process = made.client.start("batch", made.write(rented(made, 1), max_cost=40), "--yes")
            until(lambda: lambda_cloud.ours(), "the launch", timeout=90)
            process.kill()
    process.communicate()
    assert "! gpu_1x_a100 of " in made.client.ok("batch", "status")
    done = made.client.run("batch", "stop", "--yes", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "! gpu_1x_a100 of " not in done.stderr
    assert made.rows()["i1"]["state"] == ("dropped" if when == "boot" else "stopped")
    lambda_cloud.until_gone()
    lambda_cloud.until_left()
    (rental,) = lambda_cloud.rentals()
    assert rental.state == "ended"


@pytest.mark.long
def test_a_price_that_rises_as_an_item_is_launched_goes_beyond_no_limit(made, lambda_cloud):
    """What is kept for it was looked up before; by the new price it is too dear, and nothing is rented."""
    looks = []

    def rise(line):
        if line["call"] == "types":
            looks.append(line)
            for kind in lambda_cloud.service.state.kinds.values():
                kind.cents *= 3 if len(looks) == 1 else 1

    lambda_cloud.service.after = rise
    done = made.client.run("batch", made.write(rented(made, 1), max_cost=8.5), "--yes")
    assert done.returncode == 3, done.stderr + done.stdout
    assert "prices have just risen: a machine may cost $23.88 now" in done.stdout
    assert "max_cost = 8.5 of the batch: $0.00 spent" in done.stdout
    assert lambda_cloud.rentals() == ()


@pytest.mark.long
@pytest.mark.parametrize("kept", [0, 80])
def test_a_record_of_a_rental_that_was_cut_off_is_not_taken_for_none(made, lambda_cloud, kept):
    """Its machine may be billed: all commands that speak of what is rented name the file, until it has gone."""
    process = begun(made)
    process.kill()
    process.communicate()
    (rental,) = lambda_cloud.rentals()
    file = lambda_cloud.ledger.place(rental.nonce).with_suffix(".jsonl")
    file.write_bytes(file.read_bytes()[:kept])
    made.go_on()
    words = f"{file.name}: cannot be read; the rentals that it records may still be billed"
    assert words in made.client.ok("hosts")
    done = made.client.run("reconcile")
    assert done.returncode == 1
    assert file.name in done.stdout + done.stderr
    made.client.run("batch", "resume")
    assert words in made.client.ok("batch", "status")


@pytest.mark.long
def test_a_record_that_has_lost_the_boot_of_a_machine_loses_nothing_of_its_run(made, lambda_cloud):
    """`launch reconcile` leaves a run that goes on, and has it looked after; what it made comes home."""
    process = begun(made)
    process.kill()
    process.communicate()
    (rental,) = lambda_cloud.rentals()
    file = lambda_cloud.ledger.place(rental.nonce).with_suffix(".jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:20])
    assert made.client.run("reconcile").returncode == 0
    assert all_looked_after(lambda_cloud)
    made.go_on()
    lambda_cloud.until_gone()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    assert made.noted("begin") == made.noted("end") == {"i1": 1}
    (kept,) = lambda_cloud.rentals()
    assert kept.cents >= lambda_cloud.service.state.cents()


@pytest.mark.long
def test_the_machine_of_an_item_that_has_ended_is_not_waited_for_without_an_end(made, lambda_cloud):
    """Its keeper was killed, so that its cost is kept back: the next item has another keeper end it, and begins then."""
    made.hold()
    file = made.write(rented(made, 2), max_cost=8.5, max_parallel=1)
    process = made.client.start("batch", file, "--yes")
    until(lambda: made.noted("begin").total() == 1, "the first item", timeout=90)
    until(lambda: made.rows()["i1"]["state"] == "running", "the transition")
    process.kill()
    process.communicate()
    with BatchQueue("sweep", made.client.runs / "batches" / "sweep") as queue:
        queue.step(queue.item(1), ItemState.ENDED, outcome="failed", why="by hand")
    made.go_on()
    done = made.client.run("batch", "resume", timeout=120)
    assert made.rows()["i2"]["state"] == "succeeded", done.stderr + done.stdout
    lambda_cloud.until_gone()
    assert made.noted("end") == {"i1": 1, "i2": 1}
    first, second = sorted(lambda_cloud.rentals(), key=lambda rental: rental.intent.time)
    assert first.ended <= second.intent.time


@pytest.mark.long
def test_stop_names_a_worker_that_is_stopped_itself(made, lambda_cloud):
    """While it rents a machine it would be waited for without an end."""
    with lambda_cloud.service.holding("instances"):
        process = made.client.start("batch", made.write(rented(made, 1), max_cost=40), "--yes")
        until(lambda: lambda_cloud.ours(), "the launch", timeout=90)
        process.send_signal(signal.SIGSTOP)
        done = made.client.run("batch", "stop", "--now", "--yes", timeout=60)
        process.send_signal(signal.SIGCONT)
    assert done.returncode == 2
    assert f"kill -CONT {process.pid}" in done.stderr
    process.communicate(timeout=120)
    assert [row["state"] for row in made.rows().values()] == ["stopped"] or made.noted("end") == {"i1": 1}
    assert lambda_cloud.ours() == []


@pytest.mark.long
def test_a_host_that_became_one_where_machines_are_rented_costs_nothing_unasked(made, lambda_cloud):
    """Its batch has no limit of its own: that is named, and given at `resume`, which asks as the batch did."""
    items = made.items(1, host="gpu", profile="a100_40gb")
    path = made.client.project / "launch.toml"
    known = path.read_text()
    path.write_text(f'{known}\n[hosts.gpu]\naddress = "127.0.0.1"\nport = 1\n')
    assert made.client.run("batch", made.write(items)).returncode == 4
    path.write_text(known.replace("[hosts.rented]", "[hosts.gpu]"))
    done = made.client.run("batch", "resume")
    assert done.returncode == 3
    more = "launch batch resume sweep --failed --max-cost N"
    assert "gpu: its machines are rented, and the batch has no max_cost" in done.stdout
    assert more in done.stderr
    assert lambda_cloud.rentals() == ()
    asked = made.client.run("batch", "resume", "--failed", "--max-cost", "12")
    assert asked.returncode == 3
    assert "gpu: the item may cost $12.00" in asked.stderr
    assert "launch batch resume sweep --yes … accepts the cost" in asked.stderr
    assert lambda_cloud.rentals() == ()
    done = made.client.run("batch", "resume", "--failed", "--max-cost", "12", "--yes", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "of $12.00" in done.stderr
    assert lambda_cloud.ours() == []


@pytest.mark.long
def test_the_limit_is_raised_by_resume(made, lambda_cloud):
    """An item that it was too low for has ended as refused, and says how; a limit that cannot be is refused."""
    key = made.client.variables.pop("LAMBDA_API_KEY")
    assert made.client.run("batch", made.write(rented(made, 1), max_cost=8)).returncode == 4
    made.client.variables["LAMBDA_API_KEY"] = key
    done = made.client.run("batch", "resume", "--max-cost", "5")
    assert done.returncode == 3
    assert "max_cost = 5 of the batch" in done.stdout
    assert "launch batch resume sweep --failed --max-cost N" in done.stderr
    for wrong in ("0", "-3", "nan", "inf"):
        bad = made.client.run("batch", "resume", "--failed", "--max-cost", wrong)
        assert bad.returncode == 2, wrong
        assert "batch sweep: max_cost" in bad.stderr
    assert [row["state"] for row in made.rows().values()] == ["refused"]
    done = made.client.run("batch", "resume", "--failed", "--max-cost", "8", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert made.noted("end") == {"i1": 1}


@pytest.mark.long
def test_an_account_without_a_key_is_not_said_to_be_silent(made, lambda_cloud):
    """What is missing is said, and that three tries came to nothing."""
    made.client.variables.pop("LAMBDA_API_KEY")
    done = made.client.run("batch", made.write(rented(made, 1), max_cost=40), "--yes")
    assert done.returncode == 4
    assert "no API key" in made.rows()["i1"]["why"]
    assert "asked 3 times, without success: rented" in done.stderr
    assert lambda_cloud.rentals() == ()


DRY = ["--dry-run", "--yes"]


def test_what_can_never_run_within_the_limit_rents_nothing(made, lambda_cloud):
    """A batch has a limit, which is agreed to; an item beyond it is refused, and a dry run says so."""
    file = made.write(rented(made, 3))
    for words in ([], ["--yes"], ["--dry-run"]):
        done = made.client.run("batch", file, *words)
        assert done.returncode == 2
        assert "the 3 items have no common cost limit" in done.stderr
    done = made.client.run("batch", file, "--max-cost", "3", "--dry-run")
    assert done.returncode == 3
    assert done.stdout.count("this item may cost $7.96, above the batch's max_cost = 3") == 3
    assert "i1, i2, i3: can run on none of the hosts; nothing was rented or sent" in done.stdout
    unsure = made.client.run("batch", file, "--max-cost", "20", "--dry-run")
    assert unsure.returncode == made.client.run("batch", file, "--max-cost", "20").returncode == 3
    assert (
        "would ask: rented: the 3 items together may cost $20.00, which is more than confirm_above = 10"
        in unsure.stderr
    )
    said = made.client.ok("batch", file, "--max-cost", "20", *DRY)
    assert "3 items; the checks pass; nothing was rented or sent" in said
    assert not (made.client.runs / "batches" / "sweep").exists()
    done = made.client.run("batch", file, "--max-cost", "3", "--yes")
    assert done.returncode == 1
    assert {row["state"] for row in made.rows().values()} == {"refused"}
    assert "max_cost = 3 of the batch: $0.00 spent" in done.stdout
    assert lambda_cloud.rentals() == ()


@pytest.mark.long
def test_what_is_kept_is_said_with_its_price_and_what_ends_it(made, lambda_cloud):
    """As its item ends, by all commands that look at the batch then, and by an item that waits for it."""
    lambda_cloud.table(keep=True)
    process = made.client.start("batch", made.write(rented(made, 1), max_cost=8.5), "--yes")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    (rental,) = lambda_cloud.rentals()
    ends = f"end it   launch reconcile --adopt {rental.instance}"
    assert "i1: rented: its machine is kept, as its table says: $" in err
    assert err.count(ends) >= 1
    assert f"! gpu_1x_a100 of {rental.intent.run} is kept: $" in made.client.ok("batch", "status")
    assert "/h, until its limit at " in made.client.ok("batch", "status")
    lambda_cloud.clock.sleep(600)
    assert made.rows()["i1"]["cost"] >= 0.33, "it is billed meanwhile"
    stopped = made.client.run("batch", "stop", "sweep")
    assert (stopped.returncode, ends in stopped.stderr) == (0, True)
    removed = made.client.run("batch", "rm", "sweep")
    assert (removed.returncode, ends in removed.stderr) == (0, True)
    made.client.ok("reconcile", "--adopt", rental.instance)
    lambda_cloud.until_gone()


@pytest.mark.long
def test_an_item_that_waits_for_kept_machines_says_so(made, lambda_cloud):
    """It waits until they are ended."""
    lambda_cloud.table(keep=True)
    items = rented(made, 2)
    process = made.client.start("batch", made.write(items, max_cost=16), "--max-parallel", "1", "--yes")
    until(lambda: made.noted("end").total() == 1, "the first item", timeout=90)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    process = made.client.start("batch", "resume", "--max-cost", "8.5", "--yes")
    until(
        lambda: (
            "kept for machines that are rented, and this item may cost" in (made.rows()["i2"]["why"] or "")
        ),
        "its reason",
        timeout=60,
    )
    (rental,) = [one for one in lambda_cloud.rentals() if one.is_open]
    made.client.ok("reconcile", "--adopt", rental.instance, timeout=120)
    made.client.run("batch", "stop", "sweep", timeout=120)
    process.communicate(timeout=120)
    for one in lambda_cloud.rentals():
        if one.is_open:
            made.client.run("reconcile", "--adopt", one.instance, "--force")
    lambda_cloud.until_gone()
