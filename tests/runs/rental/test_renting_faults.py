"""Faults of the provider while a run is rented for, launched and ended: each ends in a true state, with what was paid.

The witness is the stand-in's own account. What kills of the client do is in test_renting_kills.py.
"""

import re

import pytest
from testbed.client import until
from testbed.rents import Witness

pytestmark = pytest.mark.slow(reason="each case rents a machine")
LAUNCH = ("--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py")
TRAIN = """
import os, sys, time
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
print("begun", flush=True)
while "wait" in sys.argv and not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def with_instance(**values):
    """Return a fault that changes each instance as soon as it is launched."""

    def put(service):
        def change(line):
            for one in service.state.machines.values() if line["call"] == "launch" else ():
                vars(one).update(values)

        service.after = change

    return put


def doubled(service):
    service.state.is_doubled = True


def without_address(service):
    service.state.habits.ip_s = 400


def failing(call, kind, **values):
    return lambda service: service.fail(call, kind, **values)


def paid(project):
    """What the ledger says that all of it has cost."""
    now = project.clock.now()
    return f"${sum(rental.cents_at(now) for rental in project.rentals()) / 100:.2f}"


def check_over(project):
    Witness(project.service, []).check_over(project.rentals())


LIVED_THROUGH = {
    "the answer is lost": failing("launch", "lost"),
    "accepted with a 502": failing("launch", "accepted", status=502),
    "no answer, and it comes 250 s later": failing("launch", "late", wait_s=250),
    "no answer, it comes 330 s later, and another was launched": failing("launch", "late", wait_s=330),
    "two instances for one call": doubled,
    "its address comes late": without_address,
    "an end that is none, once": with_instance(lies=1),
    "an end without an answer": failing("terminate", "lost"),
    "no list for a while": failing("instances", "status", status=503, times=3),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", LIVED_THROUGH)
def test_a_fault_that_a_launch_lives_through(project, fault):
    """Its run ends well, and the last words have what all of its instances have cost."""
    LIVED_THROUGH[fault](project.service)
    said = project.client.seen(*LAUNCH)
    run = project.rentals()[-1].intent.run
    assert (project.client.runs / run / "outputs" / "out" / "weights").read_text() == "w" * 1000
    check_over(project)
    assert f"the machine is gone: {minutes(said)} minutes, at most {paid(project)}" in said
    assert len(Witness(project.service, []).ours) == 2 if "it comes 330" in fault or "two" in fault else 1
    assert project.client.run("reconcile").returncode == 0


def minutes(said):
    return re.search(r"is gone: (\d+) minutes", said)[1]


ENDED = {
    "a status never seen": (with_instance(status="hibernating"), "still 'hibernating' after 9"),
    "no status": (with_instance(status=""), "still '' after 9"),
    "unhealthy": (with_instance(status="unhealthy"), "still 'unhealthy' after 9"),
    "preempted": (with_instance(status="preempted"), "taken it away"),
    "gone": (with_instance(gone=1_800_000_060.0), "does not list it any more"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", ENDED)
def test_a_fault_that_ends_a_launch(project, fault):
    """While it boots: it is no success, its instance is ended, and what was paid is said."""
    put, words = ENDED[fault]
    put(project.service)
    done = project.client.run(*LAUNCH)
    assert done.returncode == 4, done.stderr
    assert words in done.stderr
    assert f"cost at most {paid(project)}" in done.stderr
    check_over(project)
    assert "nothing is rented" in project.client.ok("reconcile")


def test_launches_without_an_answer(project):
    """Three, which made nothing: what may still come is for reconcile, and that is said."""
    project.service.fail("launch", "cut", times=9)
    done = project.client.run(*LAUNCH)
    assert done.returncode == 4, done.stderr
    assert "3 launches of gpu_1x_a100 got no answer, and made no instance" in done.stderr
    assert "launch reconcile" in done.stderr
    assert {rental.state for rental in project.rentals()} == {"unseen"}
    check_over(project)


@pytest.mark.long
def test_an_end_that_never_comes(project):
    """The run's files are here; what goes on to be paid is said with its cost so far, and a process keeps trying."""
    with_instance(lies=10_000)(project.service)
    done = project.client.run(*LAUNCH)
    (rental,) = project.rentals()
    said = done.stdout + done.stderr
    cost = re.search(rf"{rental.instance} is still listed after its termination: (\$\d\.\d\d) so far", said)
    assert cost is not None, said
    assert "$0.00" < cost[1] <= paid(project)
    assert "try again   launch reconcile" in said
    assert (project.client.runs / rental.intent.run / "outputs" / "out" / "weights").exists()
    assert rental.state == "ending"
    assert done.returncode != 0
    assert "keeps trying" in said
    assert project.ledger.is_held(rental.nonce)
    assert len(project.ours()) == 1
    with_instance(lies=0)(project.service)
    project.service.after({"call": "launch"})
    project.clock.sleep(400)
    project.until_gone()
    project.until_left()
    check_over(project)


@pytest.mark.long
def test_a_machine_that_dies_while_the_provider_calls_it_active(project):
    """Nobody knows better before its limit: then it is ended, with its cost, and the run can go on elsewhere."""
    process = project.started("--", "python3", "train.py", "wait")
    project.instances.newest.kill()
    looks = len(project.service.of("instances"))
    until(lambda: len(project.service.of("instances")) > looks, "a look while the link is lost")
    (rental,) = project.rentals()
    assert rental.state == "ready"
    assert project.client.run("reconcile").returncode == 0  # it is wanted
    project.clock.sleep(5 * 3600)
    said = "".join(process.communicate(timeout=120))
    assert process.returncode == 4, said
    assert "its time was up" in said
    assert f"at most {paid(project)}" in said
    assert (
        f"launch rerun {rental.intent.run.rpartition('-')[2]} --host rented" in said
    )  # it had no checkpoint
    check_over(project)
    assert f"at most {paid(project)}" in project.client.ok("ps")
