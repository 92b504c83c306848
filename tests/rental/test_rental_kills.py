"""SIGKILL for a client that rents, at each request and each wait for the disk: after two reconciles at once nothing is left.

The witness is the stand-in for Lambda Cloud: which instances live, whose end was asked for, what each has cost. No machine is
booted behind an instance; with machines see tests/runs/rental/test_renting_kills.py. `make rents` has each point several times.
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from testbed import lambda_client
from testbed.lambda_client import is_anything_billed
from testbed.lambda_service import LambdaService
from testbed.rents import ROUNDS, Tally, Witness
from testbed.sim_clock import SimClock
from testbed.tables import mostly_long

from launcher.errors import ServiceError
from launcher.rental.reconcile import reconcile
from launcher.rental.renting import RentalState

SYNCS = 7
"""Waits for the disk from intent to ended: three for the intent with its folders, then one a step."""
RUN_B = "261122-other-aaaaaa"
WHERE = "a renter"

pytestmark = pytest.mark.slow(reason="each case starts a client and kills it")


class Round(NamedTuple):
    """An account, a folder for its clients, and two instances that are not ours, one of which looks as if it were."""

    stand_in: LambdaService
    folder: Path
    strangers: list
    dice: random.Random
    turn: int

    def drive(self, *words):
        """Start a client."""
        key = self.stand_in.state.accounts[0].key
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        argv = [sys.executable, lambda_client.__file__, self.stand_in.base, key, str(self.folder), *words]
        return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)

    def renter(self):
        """Return a renter of this process."""
        return lambda_client.renter(self.stand_in.base, self.stand_in.state.accounts[0].key, self.folder)

    def rentals(self):
        """Return what is in the ledger."""
        return lambda_client.RentalLedger(self.folder / "rentals").rentals()

    def reconcile_twice_at_once(self):
        """Return what a third one found."""
        renters, found = [self.renter() for _ in range(2)], []
        threads = [threading.Thread(target=lambda one=one: found.append(reconciled(one))) for one in renters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 2
        return reconcile(renters[0])

    def judge(self, *, waits_longer=False):
        """After reconciling, nothing of ours lives by the stand-in's account, and no stranger's was touched.

        With `waits_longer` an instance may come after that, which the next reconcile ends.
        """
        witness = Witness(self.stand_in, self.strangers)
        done = self.reconcile_twice_at_once()
        witness.check_single()
        self.stand_in.state.clock.sleep(300)  # what was under way until now has come
        if waits_longer:
            done = reconcile(self.renter())
        witness.check_over(self.rentals())
        assert not is_anything_billed(done)
        return witness


def reconciled(renter):
    """Return what a reconcile did, once the service gives it an answer that it can use: until then a person types it again."""
    for _ in range(3):
        with contextlib.suppress(ServiceError):
            return reconcile(renter)
    return reconcile(renter)


@pytest.fixture
def each_round(tmp_path, request):
    """The rounds of a point; what one that fails has started is ended."""

    def rounds():
        dice = random.Random(request.node.name)
        for turn in range(ROUNDS):
            folder = tmp_path / str(turn)
            folder.mkdir()
            with LambdaService(SimClock(folder / "clock")) as stand_in:
                state, account = stand_in.state, stand_in.account()
                tags = {"launch:run": lambda_client.RUN, "launch:nonce": "abcdefghijkl"}
                strangers = [state.stranger(account, "research"), state.stranger(account, "x", tags)]
                yield Round(stand_in, folder, strangers, dice, turn)

    with contextlib.closing(rounds()) as made:
        yield made


def test_a_client_that_nobody_kills(each_round):
    """It waits for the disk as often as the cases below count on."""
    one = next(each_round)
    assert one.drive(f"kill=before:{SYNCS + 1}", "rent").wait() == 0
    assert one.rentals()[0].state is RentalState.ENDED
    one.judge()


@mostly_long("number", range(1, SYNCS + 1), ci=(2,))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_wait_for_the_disk(each_round, record_property, when, number):
    """Whatever of the ledger was written, its instance is found and ended."""
    tally = Tally(ROUNDS)
    for one in each_round:
        assert one.drive(f"kill={when}:{number}", "rent").wait() == -signal.SIGKILL
        tally.add(one.judge(), one.rentals(), killed=True)
    tally.record(record_property, WHERE, f"{when} wait {number} for the disk")


REQUESTS = [("launch", 1), ("instances", 1), ("instances", 2), ("instances", 12), ("terminate", 1)]
"""Which call of its kind: a launch, looks while it boots, the end."""
CASES = [(call, number, how) for call, number in REQUESTS for how in ("not accepted", "accepted", "answered")]


def killed_at(one, call, number, how, *words):
    """Let a client that rents, or does something else, be killed at the Nth call of a kind; return its exit code."""
    counts, state = itertools.count(1), one.stand_in.state

    def kill(line, *, phase):
        if line["call"] != call or phase != ("after" if how == "answered" else "before"):
            return False
        if next(counts) != number:
            return False
        child.kill()
        child.wait()
        if how == "accepted later":
            state.late.append((state.clock.now() + 250, state.accounts[0], line["body"]))
        return how in ("not accepted", "accepted later")

    one.stand_in.before = lambda line: kill(line, phase="before")
    one.stand_in.after = lambda line: kill(line, phase="after")
    child = one.drive(*(words or ["rent"]))
    return child.wait()


@mostly_long(("call", "number", "how"), [*CASES, ("launch", 1, "accepted later")], ci=(0, 8, 14, 15))
def test_killed_at_a_request(each_round, record_property, call, number, how):
    """Before it is accepted, which it then is, is not, or is minutes later; or before the answer is read."""
    tally = Tally(ROUNDS)
    for one in each_round:
        assert killed_at(one, call, number, how) == -signal.SIGKILL
        tally.add(one.judge(), one.rentals(), killed=True)
    tally.record(record_property, WHERE, f"{call} {number}, {how}")


@pytest.mark.parametrize("fault", ["lost", "double"])
@mostly_long("number", [3, 4, 5, 6, 7], ci=(0,))
def test_killed_after_a_launch_that_went_wrong(each_round, record_property, fault, number):
    """Its answer was lost, or it made two instances."""
    tally = Tally(ROUNDS)
    for one in each_round:
        if fault == "lost":
            one.stand_in.fail("launch", "lost")
        one.stand_in.state.is_doubled = fault == "double"
        code = one.drive(f"kill=after:{number}", "rent").wait()
        tally.add(one.judge(), one.rentals(), killed=code == -signal.SIGKILL)
    words = "two instances for one call" if fault == "double" else "its answer was lost"
    tally.record(record_property, WHERE, f"{words}: after wait {number} for the disk")


def test_killed_after_a_launch_that_was_made_again(each_round, record_property):
    """The first one's instance comes half a minute after it was given up: it is ended by the next look, whoever's that is."""
    tally = Tally(ROUNDS)
    for one in each_round:
        one.stand_in.fail("launch", "late", wait_s=330)
        number = one.dice.randrange(4, 10)
        code = one.drive(f"kill=after:{number}", "rent").wait()
        tally.add(one.judge(waits_longer=True), one.rentals(), killed=code == -signal.SIGKILL)
    point = "no answer, an instance 330 s later, launched again: after wait 4 to 9 for the disk"
    tally.record(record_property, WHERE, point)


def answering(call, kind, **values):
    """Let the service answer some calls of a kind so."""
    return lambda one, _elsewhere: one.stand_in.fail(call, kind, **values)


def redirecting(call, kind, times):
    """Let it answer some calls by a redirect to another service."""
    return lambda one, elsewhere: one.stand_in.fail(
        call, kind, status=307, headers={"Location": f"{elsewhere.base}/instances"}, times=times
    )


def ending_falsely(one, _elsewhere):
    """Let it say twice that an instance is terminating which goes on."""
    made = one.stand_in.state.on_start

    def start(instance):
        instance.lies = 2
        return made(instance)

    one.stand_in.state.on_start = start


FALSE_ANSWERS = {
    "a launch that is accepted and answered by a redirect": redirecting("launch", "accepted", 1),
    "a launch that is accepted and answered by a page": answering("launch", "accepted", status=200),
    "a launch that is accepted and answered by an error": answering("launch", "accepted", status=500),
    "a launch that names no instance": answering("launch", "answer", data={"instance_ids": []}),
    "a list without the instances, twice": answering("instances", "answer", data=[], times=2),
    "a list that is a redirect, twice": redirecting("instances", "status", 2),
    "a list that is a page, twice": answering("instances", "status", status=200, times=2),
    "a list that is cut off, twice": answering("instances", "broken", times=2),
    "an end that is only said, twice": ending_falsely,
    "an end that is answered by a redirect": redirecting("terminate", "status", 1),
}


@mostly_long("fault", FALSE_ANSWERS, ci=(0, 4, 8))
def test_killed_while_the_service_answers_falsely(each_round, record_property, tmp_path, fault):
    """The client dies at a wait for the disk, or not at all; the false answers that it did not get go to the reconciles."""
    tally = Tally(ROUNDS)
    with LambdaService(SimClock(tmp_path / "elsewhere")) as elsewhere:
        for one in each_round:
            FALSE_ANSWERS[fault](one, elsewhere)
            number = one.dice.randrange(3, SYNCS + 3)
            code = one.drive(f"kill=after:{number}", "rent").wait()
            tally.add(one.judge(waits_longer=True), one.rentals(), killed=code == -signal.SIGKILL)
        assert elsewhere.calls == []  # no redirect is followed
    tally.record(record_property, WHERE, f"{fault}: after wait 3 to {SYNCS + 2} for the disk")


@mostly_long("number", range(1, SYNCS + 1), ci=(3,))
def test_two_clients_at_once_are_killed(each_round, record_property, number):
    """Both at the same wait for the disk, while they share a ledger and a pace."""
    tally = Tally(ROUNDS)
    for one in each_round:
        when = "before" if one.turn % 2 else "after"
        both = [one.drive(f"kill={when}:{number}", f"rent={run}") for run in (lambda_client.RUN, RUN_B)]
        assert {child.wait() for child in both} <= {-signal.SIGKILL, 0}  # the first one makes the folders
        killed = [child for child in both if child.returncode]
        tally.add(one.judge(), one.rentals(), killed=bool(killed))
    tally.record(record_property, "two renters at once", f"wait {number} for the disk: both")


@mostly_long("number", [1, 2], ci=(1,))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reconcile_that_is_killed_is_made_again(each_round, record_property, when, number):
    """At each step that it records."""
    tally = Tally(ROUNDS)
    for one in each_round:
        one.drive("kill=before:4", "rent").wait()
        assert len(one.stand_in.alive()) == 3
        assert one.drive(f"kill={when}:{number}", "reconcile").wait() == -signal.SIGKILL
        tally.add(one.judge(), one.rentals(), killed=True)
    tally.record(record_property, "a reconciler", f"{when} wait {number} for the disk")


MORE_S = 7200.0
"""So much time is given to a rental of eight hours."""
LOOKS = [("instances", 1, how) for how in ("not accepted", "accepted", "answered")]


@mostly_long("point", [*LOOKS, "before:1", "after:1", "before:2", "after:2", None], ci=(1, 4), ids=str)
def test_a_killed_extend_gives_all_of_the_time_or_none(each_round, record_property, point):
    """It is killed as it looks, as the machine hears of the limit, and as the ledger does.

    The process that looks after the machine, which is this one, reads the earlier limit or the later one; the later one
    counts only once the machine has heard of it. Another `extend` goes on from what counts.
    """
    tally = Tally(ROUNDS)
    for one in each_round:
        keeper, words = one.renter(), [f"extend={MORE_S}"]
        first = keeper.clock.now() + 8 * 3600
        rental, lock = keeper.rent(
            lambda_client.offer(), lambda_client.REGION, lambda_client.RUN, first, lambda_client.SETUP
        )
        keeper.wait_until_ready(rental, 900, lambda *_: None)
        if isinstance(point, tuple):
            code = killed_at(one, *point, *words)
        else:
            code = one.drive(*([f"kill={point}"] if point else []), *words).wait()
        one.stand_in.before = one.stand_in.after = lambda _line: None
        assert code == (0 if point is None else -signal.SIGKILL)
        is_later = point in ("before:2", "after:2", None)  # a line that is written counts, once it is whole
        known = keeper.known(rental).intent.deadline
        assert known == first + MORE_S * is_later
        told = one.folder / "told"
        assert told.exists() == (not isinstance(point, tuple))
        assert one.drive(*words).wait() == 0
        limit = keeper.known(rental).intent.deadline
        assert limit == known + MORE_S
        assert abs(float(told.read_text()) - (limit - 600)) < 1
        lock.release()
        tally.add(one.judge(), one.rentals(), killed=point is not None)
    tally.record(record_property, "an extend", "not killed" if point is None else str(point))


def test_a_client_that_lives_keeps_its_instance(each_round):
    """While another one's, that was killed, is ended by two reconciles."""
    one = next(each_round)
    living = one.renter()
    deadline = living.clock.now() + 8 * 3600
    rental, lock = living.rent(
        lambda_client.offer(), lambda_client.REGION, RUN_B, deadline, lambda_client.SETUP
    )
    one.drive("kill=after:4", "rent").wait()
    assert len(one.stand_in.alive()) == 4
    one.reconcile_twice_at_once()
    strangers = {stranger.id for stranger in one.strangers}
    assert {instance.id for instance in one.stand_in.alive()} == {rental.instance, *strangers}
    assert living.wait_until_ready(rental, 900, lambda *_: None).id == rental.instance
    living.end(rental, "done")
    lock.release()
    one.judge()
