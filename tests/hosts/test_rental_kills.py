"""SIGKILL for a client that rents, at each request and each wait for the disk: after two reconciles at once nothing is left.

The witness is the stand-in for Lambda Cloud: which instances live, whose end was asked for, what all of it has cost.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest
from testbed import lambda_client

from launcher.hosts.reconciler import reconcile
from launcher.values.renting import RentalState

SYNCS = 7
"""Waits for the disk from intent to ended: three for the intent with its folders, then one a step."""
RUN_B = "261122-other-aaaaaa"

pytestmark = pytest.mark.slow(reason="each case starts a client and kills it")


@pytest.fixture
def strangers(lambda_service):
    """Two instances that are not ours, one of which looks as if it were."""
    (account,) = lambda_service.state.accounts
    tags = {"launch:run": lambda_client.RUN, "launch:nonce": "abcdefghijkl"}
    return [
        lambda_service.state.stranger(account, "research"),
        lambda_service.state.stranger(account, "x", tags),
    ]


def drive(stand_in, folder, *words):
    key = stand_in.state.accounts[0].key
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, lambda_client.__file__, stand_in.base, key, str(folder), *words]
    return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)


def reconcile_twice_at_once(stand_in, folder):
    renters = [lambda_client.renter(stand_in.base, stand_in.state.accounts[0].key, folder) for _ in range(2)]
    found = []
    threads = [threading.Thread(target=lambda one=one: found.append(reconcile(one))) for one in renters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    return reconcile(renters[0])


def check(stand_in, folder, strangers):
    """After reconciling, nothing of ours lives by the stand-in's account, and no stranger's was touched."""
    done = reconcile_twice_at_once(stand_in, folder)
    stand_in.state.clock.sleep(300)  # what was under way until now has come
    assert {one.id for one in stand_in.alive()} == {one.id for one in strangers}
    assert not stand_in.terminated() & {one.id for one in strangers}
    assert not done.is_anything_billed
    rentals = lambda_client.Ledger(folder / "rentals").rentals()
    assert not [rental for rental in rentals if rental.is_open]
    now = stand_in.state.clock.now()
    bill = stand_in.state.cents() - sum(one.cents(now) for one in strangers)
    assert bill <= sum(rental.cents_at(now) for rental in rentals)
    assert stand_in.state.violations == []
    launched = {one.tag("launch:nonce") for one in stand_in.state.machines.values()} - {"", "abcdefghijkl"}
    assert launched <= {rental.nonce for rental in rentals}


def test_a_client_that_nobody_kills(lambda_service, tmp_path, strangers):
    """It waits for the disk as often as the cases below count on."""
    assert drive(lambda_service, tmp_path, f"kill=before:{SYNCS + 1}", "rent").wait() == 0
    assert lambda_client.Ledger(tmp_path / "rentals").rentals()[0].state is RentalState.ENDED
    check(lambda_service, tmp_path, strangers)


@pytest.mark.parametrize("number", range(1, SYNCS + 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_wait_for_the_disk(lambda_service, tmp_path, strangers, when, number):
    """Whatever of the ledger was written, its instance is found and ended."""
    assert drive(lambda_service, tmp_path, f"kill={when}:{number}", "rent").wait() == -signal.SIGKILL
    check(lambda_service, tmp_path, strangers)


REQUESTS = [("launch", 1), ("instances", 1), ("instances", 2), ("instances", 12), ("terminate", 1)]
"""Which call of its kind: a launch, looks while it boots, the end."""


@pytest.mark.parametrize("how", ["not accepted", "accepted", "accepted later", "answered"])
@pytest.mark.parametrize(("call", "number"), REQUESTS, ids=str)
def test_killed_at_a_request(lambda_service, tmp_path, strangers, call, number, how):
    """Before it is accepted, which it then is, is not, or is minutes later; or before the answer is read."""
    counts = itertools.count(1)

    def kill(line, *, phase):
        if line["call"] != call or phase != ("after" if how == "answered" else "before"):
            return False
        if next(counts) != number:
            return False
        child.kill()
        child.wait()
        if how == "accepted later" and call == "launch":
            state = lambda_service.state
            state.late.append((state.clock.now() + 250, state.accounts[0], line["body"]))
        return how in ("not accepted", "accepted later")

    lambda_service.before = lambda line: kill(line, phase="before")
    lambda_service.after = lambda line: kill(line, phase="after")
    child = drive(lambda_service, tmp_path, "rent")
    assert child.wait() == -signal.SIGKILL
    check(lambda_service, tmp_path, strangers)


@pytest.mark.parametrize("fault", ["lost", "double"])
@pytest.mark.parametrize("number", [3, 4, 5, 6, 7])
def test_killed_after_a_launch_that_went_wrong(lambda_service, tmp_path, strangers, fault, number):
    """Its answer was lost, or it made two instances."""
    if fault == "lost":
        lambda_service.fail("launch", "lost")
    lambda_service.state.is_doubled = fault == "double"
    drive(lambda_service, tmp_path, f"kill=after:{number}", "rent").wait()
    check(lambda_service, tmp_path, strangers)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reconcile_that_is_killed_is_made_again(lambda_service, tmp_path, strangers, when, number):
    """At each step that it records."""
    drive(lambda_service, tmp_path, "kill=before:4", "rent").wait()
    assert len(lambda_service.alive()) == 3
    assert drive(lambda_service, tmp_path, f"kill={when}:{number}", "reconcile").wait() == -signal.SIGKILL
    check(lambda_service, tmp_path, strangers)


def test_a_client_that_lives_keeps_its_instance(lambda_service, tmp_path, strangers):
    """While another one's, that was killed, is ended by two reconciles."""
    living = lambda_client.renter(lambda_service.base, lambda_service.state.accounts[0].key, tmp_path)
    deadline = living.clock.now() + 8 * 3600
    rental, lock = living.rent(
        lambda_client.offer(), lambda_client.REGION, RUN_B, deadline, lambda_client.SETUP
    )
    drive(lambda_service, tmp_path, "kill=after:4", "rent").wait()
    assert len(lambda_service.alive()) == 4
    reconcile_twice_at_once(lambda_service, tmp_path)
    assert {one.id for one in lambda_service.alive()} == {rental.instance, *(one.id for one in strangers)}
    assert living.wait_until_ready(rental, 900, lambda *_: None).id == rental.instance
    living.end(rental, "done")
    lock.release()
    check(lambda_service, tmp_path, strangers)
