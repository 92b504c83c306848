"""Costs, names and tags of rentals."""

import pytest
from testbed.lambda_schema import TAG, mistakes

from launcher.rental.renting import TAGS, Instance, InstanceState, cents, dollars, nonce_in


@pytest.mark.parametrize(
    ("seconds", "price", "expected"),
    [
        (0, 129, 0),
        (-5, 129, 0),
        (1, 129, 3),
        (60, 129, 3),
        (61, 129, 5),
        (3600, 129, 129),
        (3601, 60, 61),
        (1, 1, 1),
    ],
)
def test_each_minute_begun_counts_and_a_part_of_a_cent_is_a_cent(seconds, price, expected):
    """The bill is by the minute; ours is never below it."""
    assert cents(seconds, price) == expected


def test_money_is_shown_in_dollars():
    """With two digits."""
    assert [dollars(amount) for amount in (0, 1, 1992, 123456)] == ["$0.00", "$0.01", "$19.92", "$1,234.56"]


def test_the_nonce_in_a_name():
    """Only of a name of ours."""
    assert nonce_in("launch-261122-sft-k3f9w2-abc") == "abc"
    assert nonce_in("my-launch-abc") == ""
    assert nonce_in("") == ""


@pytest.mark.parametrize("tag", TAGS)
def test_tags_are_allowed_by_lambda(tag):
    """As its schema has them."""
    assert mistakes({"key": tag, "value": "x"}, TAG) == []


@pytest.mark.parametrize("state", InstanceState)
def test_only_an_active_instance_with_an_address_is_ready_and_only_a_gone_one_is_not_billed(state):
    """A word that nobody knows is neither."""
    assert Instance("i", state, "", ip="10.0.0.1").is_ready == (state is InstanceState.ACTIVE)
    assert not Instance("i", state, "").is_ready
    assert Instance("i", state, "").is_billed == (state is not InstanceState.GONE)
