"""SIGKILL with two clients or two reconciles at once: nothing of ours is left.

Who lives through it keeps its machine, and brings its files home. The witness is as in test_renting_kills.py.
"""

import contextlib

import pytest
from testbed.rent_rounds import CALLS, rounds
from testbed.rents import HOWS, WHOLE_ROUNDS, Killer, Tally, kill

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each round rents machines and reconciles several times"),
]
IN_CI = {4, "run-3"}


@pytest.fixture
def each_round(tmp_path, request):
    """The rounds of a point; what one that fails has started is ended."""
    with contextlib.closing(rounds(tmp_path, request.node.name)) as made:
        yield made


def how_of(one, number):
    return HOWS[(number + one.turn) % len(HOWS)]


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if number in IN_CI else pytest.mark.long)
        for number in range(1, len(CALLS) + 1)
    ],
)
def test_one_of_two_launches_is_killed(each_round, record_property, number):
    """At a request of its own; two reconciles begin at that moment. The other one's run ends well, and its rent with it."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        begun = []

        def begin(one=one, begun=begun):
            begun += one.reconciles()

        killer = Killer(one.service, number, how_of(one, number), one.dice, then=begin)
        both = [one.launch() for _ in range(2)]
        killer.begin(*(process.pid for process in both))
        for process in both:
            _, process.said = process.communicate(timeout=300)
        killer.end()
        living = [process for process in both if process.pid != killer.victim]
        assert [(process.returncode, process.said) for process in living if process.returncode] == []
        one.judge(begun)
        assert len(one.finished()) >= len(living)
        one.add_to(tally, killed=killer.has_killed)
    tally.record(record_property, "one of two `launch` at once", f"request {number}, {CALLS[number - 1]}")


def some_in_ci(points):
    """Leave the others to `make long`."""
    names = {point: "-".join(map(str, point)) for point in points}
    return [
        pytest.param(*point, id=name, marks=[] if name in IN_CI else pytest.mark.long)
        for point, name in names.items()
    ]


LEFT = {
    "orphan": ("instances", "terminate", "instances", "instances"),
    "run": ("instances", "terminate", "instances"),
}
"""What a reconcile asks for, by what was left: an instance that boots, or a run that is over and whose files are not home."""


def left_by(one, left):
    """Let a launch be killed while its machine boots, or once it has brought the first files home."""
    process = one.launch()
    if left == "orphan":
        killer = Killer(one.service, 6, "accepted", one.dice)
        killer.begin(process.pid)
        process.communicate()
        killer.end()
    else:
        one.until_home(1, process)
        kill(process.pid)
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize(
    ("left", "number"),
    some_in_ci([(left, number) for left, calls in LEFT.items() for number in range(1, len(calls) + 1)]),
)
def test_one_of_two_reconciles_is_killed(each_round, record_property, left, number):
    """The other one, and two more, do it all the same."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        left_by(one, left)
        how = how_of(one, number)
        killer = Killer(one.service, number, how, one.dice)
        both = one.reconciles()
        killer.begin(*(process.pid for process in both))
        for process in both:
            process.communicate(timeout=300)
        killer.end()
        one.judge()
        one.add_to(tally, killed=killer.has_killed)
    what = "an orphan that boots" if left == "orphan" else "a run that is over"
    tally.record(
        record_property,
        "one of two `reconcile` at once",
        f"request {number}, {LEFT[left][number - 1]}: {what}",
    )


@pytest.mark.long
def test_a_reconcile_is_killed_while_files_come_home(each_round, record_property):
    """They come with the next one, and only then the machine goes."""
    tally = Tally(WHOLE_ROUNDS)
    for one in each_round:
        left_by(one, "run")
        there = one.files_home()
        both = one.reconciles()
        one.until_home(there + one.dice.randrange(1, 20))
        for process in both:
            kill(process.pid)
            process.communicate()
        one.judge()
        one.add_to(tally, killed=all(process.returncode == -9 for process in both))
    tally.record(record_property, "two `reconcile` at once", "while files come home: both")
