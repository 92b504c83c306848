"""Where items of a batch are begun: in their order, on the first of their hosts that is open; what the others wait for."""

from launcher.batch.batch_placement import HostAvailability, decide
from launcher.batch.queued_item import Item, ItemState


def item(number, *hosts, tried=()):
    """A queued item."""
    return Item(number, f"i{number}", "{}", hosts, {}, ItemState.QUEUED, None, None, None, None, tried, 0.0)


def begun(decision):
    return [(one.number, host) for one, host in decision.begin]


def test_the_first_open_host_of_each_item_is_taken_once_a_round():
    """The next item goes to the next host, or waits for this launch."""
    places = {"A": HostAvailability(), "B": HostAvailability()}
    decision = decide([item(1, "A", "B"), item(2, "A", "B"), item(3, "A")], places, going=0, most=None)
    assert begun(decision) == [(1, "A"), (2, "B")]
    assert decision.waits == {3: "waits for another launch on A"}


def test_a_closed_host_delays_only_what_needs_it():
    """What can go elsewhere does, and overtakes."""
    places = {"A": HostAvailability("A: refuses the connection"), "B": HostAvailability()}
    decision = decide([item(1, "A"), item(2, "A", "B")], places, going=0, most=None)
    assert begun(decision) == [(2, "B")]
    assert decision.waits == {1: "A: refuses the connection"}


def test_a_host_that_has_refused_an_item_is_not_asked_again():
    """It is not even named in what the item waits for."""
    places = {"A": HostAvailability(), "B": HostAvailability("B: all its cards are taken")}
    decision = decide([item(1, "A", "B", tried=("A",))], places, going=0, most=None)
    assert begun(decision) == []
    assert decision.waits == {1: "B: all its cards are taken"}


def test_max_parallel_counts_what_goes_on():
    """All that is beyond it waits, whatever is open."""
    places = {"A": HostAvailability(), "B": HostAvailability()}
    decision = decide([item(1, "A"), item(2, "B")], places, going=3, most=4)
    assert begun(decision) == [(1, "A")]
    assert decision.waits == {2: "waits for one of 4 runs to end (max_parallel)"}


def test_a_host_without_cards_has_one_run_at_a_time():
    """Nothing but the batch keeps its runs apart there."""
    decision = decide([item(1, "A")], {"A": HostAvailability(going=1, most=1)}, going=1, most=None)
    assert begun(decision) == []
    assert decision.waits == {1: "waits for a run on A to end"}
