"""SIGKILL with two clients or two reconciles at once, for a keeper, and after a launch that went wrong: nothing of ours is left.

Who lives through it keeps its machine, and brings its files home. The witness is as in test_renting_kills.py.
"""

import pytest
from testbed.client import until
from testbed.rent_rounds import CALLS, FILES, rounds
from testbed.rents import HOWS, Killer, Tally, kill

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each round rents machines and reconciles several times"),
]
IN_CI = {4, "orphan-2", "run-3", "keeper-2"}


@pytest.fixture
def each_round(tmp_path, request):
    """The rounds of a point."""
    return rounds(tmp_path, request.node.name)


def how_of(one, number):
    return HOWS[(number + one.turn) % len(HOWS)]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if number in IN_CI else pytest.mark.long)
        for number in range(1, len(CALLS) + 1)
    ],
)
def test_one_of_two_launches_is_killed(each_round, record_property, number):
    """At a request of its own; two reconciles begin at that moment. The other one's run ends well, and its rent with it."""
    tally = Tally()
    for one in each_round:
        begun = []
        killer = Killer(
            one.service,
            number,
            how_of(one, number),
            one.dice,
            then=lambda one=one, begun=begun: begun.extend(one.reconciles()),
        )
        both = [one.launch() for _ in range(2)]
        killer.begin(*(process.pid for process in both))
        for process in both:
            _, process.said = process.communicate(timeout=120)
        killer.end()
        living = [process for process in both if process.pid != killer.victim]
        assert [(process.returncode, process.said) for process in living if process.returncode] == []
        one.judge(begun)
        assert len(one.finished()) >= len(living)
        one.add_to(tally, killed=any(process.returncode == -9 for process in both))
    tally.record(record_property, "one of two `launch` at once", f"request {number}, {CALLS[number - 1]}")
