"""SIGKILL for `launch` at each point of a rent, from the first request to the last: after two reconciles at once nothing is left.

The witness is the stand-in's own account: which instances live, whose end was asked for, what each has cost. What a run has
finished is home, by the sha256sum of the dead machines' disks. `make rents` has each point several times.
"""

import contextlib

import pytest
from testbed.client import is_gone, until
from testbed.rent_rounds import CALLS, FILES, LAUNCH, rounds
from testbed.rents import HOWS, MAX_LATER_S, WHOLE_ROUNDS, Killer, Tally, kill
from testbed.two_hosts import killed_after

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each round rents a machine and reconciles three times"),
]
REQUESTS = range(1, len(CALLS) + 1)


def points(all_of_them, *in_ci):
    """Leave all but some to `make long`."""
    return [pytest.param(one, marks=[] if one in in_ci else pytest.mark.long) for one in all_of_them]


def how_of(one, number):
    """Take turns."""
    return HOWS[(number + one.turn) % len(HOWS)]


@pytest.fixture
def each_round(tmp_path, request):
    """The rounds of a point; what one that fails has started is ended."""
    with contextlib.closing(rounds(tmp_path, request.node.name)) as made:
        yield made


@pytest.mark.long
def test_a_launch_that_nobody_kills(each_round):
    """It makes the requests that the cases below count on, and the witness sees its files."""
    one = next(each_round)
    process = one.launch()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert tuple(line["call"] for line in one.service.calls) == CALLS
    ((run, there),) = one.finished().items()
    assert len([*there.iterdir()]) == len([*(one.client.runs / run / "outputs" / "out").iterdir()]) == FILES
    one.judge()
    (one.client.runs / run / "outputs" / "out" / "7").unlink()
    assert one.lost() == [f"{run}: 7"]


@pytest.mark.parametrize("number", points(REQUESTS, 4))
def test_killed_at_a_request(each_round, record_property, number):
    """Before it is accepted, which it then is not; before its answer is sent; or a little later."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        how = how_of(one, number)
        killer = Killer(one.service, number, how, one.dice)
        process = one.launch()
        killer.begin(process.pid)
        process.communicate(timeout=300)
        killer.end()
        was_killed = process.returncode == -9
        assert was_killed or how == "answered"  # a little later it may have ended
        one.judge()
        one.add_to(tally, killed=was_killed)
    tally.record(record_property, "`launch`", f"request {number}, {CALLS[number - 1]}")


@pytest.mark.long
@pytest.mark.parametrize("stage", points(["login", "probe", "ship", "start"], "login", "start"))
def test_killed_after_a_stage(each_round, record_property, stage):
    """Up to 0.3 s after it."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        process = one.launch()
        killed_after(process, stage, one.dice.uniform(0.0, MAX_LATER_S) if one.turn else 0.0)
        one.judge()
        one.add_to(tally, killed=process.returncode == -9)
    tally.record(record_property, "`launch`", f"up to 0.3 s after stage {stage}")


@pytest.mark.long
def test_killed_while_files_come_home(each_round, record_property):
    """Once some of them are here."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        process = one.launch()
        one.until_home(one.dice.randrange(1, FILES // 2), process)
        kill(process.pid)
        process.communicate()
        assert process.returncode == -9
        one.judge()
        one.add_to(tally, killed=True)
    tally.record(record_property, "`launch`", "while files come home")


KEEPER = ("instances", "terminate", "instances")


@pytest.mark.long
@pytest.mark.parametrize("number", points(range(len(KEEPER) + 1), 2))
def test_a_keeper_is_killed(each_round, record_property, number):
    """At a request of its end of the rent, or before that, while files come home: two reconciles do what is left."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        one.client.ok("--detach", *LAUNCH, "wait")
        (pid,) = one.cloud.keepers()
        killer = Killer(one.service, number, how_of(one, number), one.dice)
        killer.begin(pid)
        one.cloud.go()
        was_killed = False
        if number == 0:
            one.until_home(one.dice.randrange(1, FILES // 2))
            was_killed = kill(pid)
        until(lambda pid=pid: is_gone(pid), "the keeper's end")
        killer.end()
        one.judge()
        one.add_to(tally, killed=was_killed or killer.has_killed)
    point = f"request {number}, {KEEPER[number - 1]}" if number else "while files come home"
    tally.record(record_property, "the keeper of a detached run", point)


@pytest.mark.long
@pytest.mark.parametrize("number", points([4, 5, 6, 8], 5))
def test_killed_after_a_launch_that_made_two(each_round, record_property, number):
    """One of them is ended by the client, or by the reconciles; what both have cost is in the ledger."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        one.service.state.is_doubled = True
        how = "accepted" if number == 4 else how_of(one, number)
        killer = Killer(one.service, number, how, one.dice)
        process = one.launch()
        killer.begin(process.pid)
        process.communicate(timeout=300)
        killer.end()
        one.judge()
        one.add_to(tally, killed=process.returncode == -9)
    assert tally.doubled == tally.rounds
    tally.record(record_property, "`launch`", f"two instances for one call: request {number}")


@pytest.mark.long
@pytest.mark.parametrize("look", points([0, 1, 3], 0))
def test_killed_at_a_launch_whose_instance_comes_late(each_round, record_property, look):
    """At the launch itself, or at a look for its instance, which comes 250 s later: the reconciles wait for it, and end it."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        if look:
            one.service.fail("launch", "late", wait_s=250)
            how = how_of(one, look)
            killer = Killer(one.service, (4 if how == "unheard" else 3) + look, how, one.dice)
        else:
            killer = Killer(one.service, 4, "unheard", one.dice, then=lambda one=one: one.let_come_late(250))
        process = one.launch()
        killer.begin(process.pid)
        process.communicate(timeout=300)
        killer.end()
        one.judge()
        assert len(one.witness.ours) == 1
        one.add_to(tally, killed=process.returncode == -9)
    where = f"look {look} for it" if look else "the launch"
    tally.record(record_property, "`launch`", f"no answer, an instance 250 s later: {where}")
