"""The wall clock of the client's computer may be set at any moment: a rental ends on time all the same, and its true cost is shown.

The judge is the stand-in, which has a clock of its own.
"""

import json
import re

import pytest
from testbed.sim_clock import Computer

pytestmark = pytest.mark.slow(reason="each test rents a machine")
HOUR = 3600.0
SET = pytest.mark.parametrize("hours", [-10, 10], ids=["back", "forward"])
"""The wall clock is set ten hours back, or ten hours forward."""
TRAIN = """
import os, time
os.makedirs("out")
open("out/weights", "w").write("w" * 1000)
print("begun", flush=True)
words = ["first", "second"]
while not os.path.exists("/home/ubuntu/go"):
    time.sleep(0.05)
    if words and os.path.exists(f"/home/ubuntu/{words[0]}"): print(words.pop(0), flush=True)
"""


@pytest.fixture
def computer(lambda_cloud, tmp_path):
    """The computer of the client, whose wall clock is right at first."""
    lambda_cloud.client.script(TRAIN)
    made = Computer(tmp_path / "computer")
    lambda_cloud.client.variables["SIM_COMPUTER"] = str(tmp_path / "computer")
    return made


def the_instance(cloud):
    """The one instance that was ever launched, by the stand-in's account."""
    (one,) = cloud.service.state.machines.values()
    return one


def judge(cloud, *, lasted_s):
    """Its instance ended after about that time, and what the ledger says that it cost is the truth, or a few minutes more."""
    one, (rental,) = the_instance(cloud), cloud.rentals()
    assert lasted_s - 300 < one.asked_to_end - one.launched < lasted_s + 700
    assert rental.state == "ended"
    cost = one.cents(cloud.clock.now())
    longest = (one.asked_to_end - one.launched + 240) / HOUR * one.type.cents
    assert cost <= rental.cents <= max(cost, longest) + 10


@pytest.mark.long
@SET
def test_a_machine_that_does_not_boot_is_given_up_on_time(lambda_cloud, computer, hours):
    """A quarter of an hour after its launch, though the clock was set while it booted."""
    lambda_cloud.service.state.habits.boot_s = 1e9
    looks = []

    def at(line):
        looks.append(line["call"])
        if looks.count("instances") == 3:
            computer.set_wall(hours * HOUR)

    lambda_cloud.service.after = at
    done = lambda_cloud.client.run(
        "--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py", timeout=120
    )
    assert done.returncode == 4, done.stderr
    said = re.search(r"after ([0-9]+) s; it was ended, and cost at most \$([0-9.]+)", done.stderr)
    assert said is not None, done.stderr
    assert 900 <= int(said[1]) < 1000
    judge(lambda_cloud, lasted_s=900)
    assert lambda_cloud.rentals()[0].cents == round(float(said[2]) * 100)


@pytest.mark.long
@SET
def test_a_run_that_is_followed_ends_with_its_rent(lambda_cloud, computer, hours):
    """It goes on for as long as it may, and no longer."""
    process = lambda_cloud.started("--", "python3", "train.py")
    computer.set_wall(hours * HOUR)
    lambda_cloud.clock.sleep(2 * HOUR)
    lambda_cloud.follows_on()
    assert (process.poll(), len(lambda_cloud.ours())) == (None, 1)
    (rental,) = lambda_cloud.rentals()
    lambda_cloud.clock.sleep(rental.intent.deadline - 250 - lambda_cloud.clock.now())
    _, said = process.communicate(
        timeout=120
    )  # no more time passes: its files come home, however slow this machine is
    assert process.returncode == 4, said
    judge(lambda_cloud, lasted_s=4 * HOUR)
    assert [*lambda_cloud.client.runs.glob("2*/outputs/out/weights")]


@pytest.mark.long
@SET
@pytest.mark.parametrize("reboots", [False, True], ids=["same-boot", "rebooted"])
def test_a_rental_that_an_earlier_command_recorded_ends_on_time(lambda_cloud, computer, hours, reboots):
    """Its keeper was killed and the clock set, perhaps with a reboot; commands after that show the truth and do what is due."""
    lambda_cloud.client.ok(
        "--detach", "--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py"
    )
    lambda_cloud.end_keepers()
    computer.set_wall(hours * HOUR)
    lambda_cloud.clock.sleep(1 * HOUR)
    if reboots:
        computer.reboot(lambda_cloud.clock.now())
    seen = lambda_cloud.client.run("reconcile")
    assert len(lambda_cloud.ours()) == 1, seen.stderr
    lambda_cloud.end_keepers()
    (rental,) = json.loads(lambda_cloud.client.run("hosts", "--json").stdout)["rentals"]
    assert not rental["past"]
    assert 199 <= rental["cents"] < 230
    assert "rented beyond its limit" not in seen.stderr
    lambda_cloud.clock.sleep(3.2 * HOUR)
    if reboots:
        computer.reboot(lambda_cloud.clock.now())
    lambda_cloud.client.run("reconcile")
    assert lambda_cloud.ours() == []
    judge(lambda_cloud, lasted_s=4.2 * HOUR)


@pytest.mark.long
def test_a_service_without_a_date_is_no_reason_to_believe_the_wall_clock(lambda_cloud, computer):
    """By the boot clock a rental has the length that it was to have, in all commands of that boot."""
    lambda_cloud.service.date = "Mon, 01 Jan 99999999999 00:00:00 GMT"
    lambda_cloud.client.ok(
        "--detach", "--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py"
    )
    lambda_cloud.end_keepers()
    computer.set_wall(-10 * HOUR)
    lambda_cloud.clock.sleep(4.2 * HOUR)
    lambda_cloud.client.run("reconcile")
    assert lambda_cloud.ours() == []
    judge(lambda_cloud, lasted_s=4.2 * HOUR)
