"""What is rented: which types fit a profile, in which order, for how long, and what that costs."""

import pytest
from testbed.client import REPOSITORY

from launcher.errors import CardBusyError, RefusedError, UnknownNameError
from launcher.planning.offers import Limits, boot_limit_s, by_price, candidates, card_memory, fits, profile_of
from launcher.values.parsing import build
from launcher.values.profile import Profile
from launcher.values.renting import Offer, cents, dollars
from launcher.values.toml import read_toml

EAST, WEST = "us-east-1", "us-west-1"


def profile(name):
    path = REPOSITORY / "profiles" / f"{name}.toml"
    data, text = read_toml(path)
    return build(Profile, data, file=path.name, text=text)


PROFILES = [profile(path.stem) for path in sorted((REPOSITORY / "profiles").glob("*.toml"))]


def offer(name, description, cents_per_hour, *regions, cards=1):
    card, memory_gb = card_memory(name, description)
    about = {"type": name, "title": f"{cards}x {description}", "card": card, "memory_gb": memory_gb}
    return Offer(**about, cards=cards, cents_per_hour=cents_per_hour, regions=regions)


A10 = offer("gpu_1x_a10", "A10 (24 GB PCIe)", 129, EAST, WEST)
A100 = offer("gpu_1x_a100", "A100 (40 GB PCIe)", 199, WEST)
A100_SXM = offer("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", 189, EAST, WEST)
A100_8 = offer("gpu_8x_a100_80gb_sxm4", "A100 (80 GB SXM4)", 2232, EAST, cards=8)
H100 = offer("gpu_1x_h100_pcie", "H100 (80 GB PCIe)", 329)
RTX = offer("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 69, WEST)
CPU = offer("cpu_4x_general", "N/A", 10, EAST, cards=0)
ALL = [A10, A100, A100_SXM, A100_8, H100, RTX, CPU]
EIGHT = Limits(max_hours=8)


def tried(**values):
    return [(one.offer.type, one.region) for one in candidates("lambda", ALL, EIGHT, **values)]


@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", ("H100", 80)),
        ("gpu_1x_gh200", "GH200 (96 GB)", ("GH200", 96)),
        ("gpu_1x_a100", "", ("A100", 40)),
        ("gpu_1x_a100_sxm4", "A100", ("A100", 40)),
        ("gpu_8x_a100_80gb_sxm4", "", ("A100", 80)),
        ("gpu_1x_x900", "X900", ("X900", None)),
        ("cpu_4x_general", "N/A", ("N/A", None)),
    ],
)
def test_a_type_s_card_and_memory(name, description, expected):
    """From its description, else from the end of its name."""
    assert card_memory(name, description) == expected


@pytest.mark.parametrize(
    ("one", "name", "count"),
    [
        (A100, "a100_40gb", 1),
        (A100_SXM, "a100_40gb", 1),
        (A100_8, "a100_80gb", 8),
        (H100, "h100", 1),
        (offer("gpu_4x_h100_sxm5", "H100 (80 GB SXM5)", 1, cards=4), "h100", 4),
        (offer("gpu_1x_h200", "H200 (141 GB)", 1), "h200", 1),
        (offer("gpu_2x_t4", "Tesla T4 (16 GB)", 1, cards=2), "t4x2", 2),
        (offer("gpu_1x_gh200", "GH200 (96 GB)", 1), None, 1),
        (offer("gpu_1x_h100_new", "H100 (94 GB)", 1), None, 1),
        (RTX, None, 1),
        (A10, None, 1),
        (CPU, None, 0),
    ],
    ids=str,
)
def test_the_profile_that_an_offer_means(one, name, count):
    """By the card's name and its memory; a card of a like name, or with other memory, is another card."""
    found = profile_of(one, PROFILES)
    assert (found.name if found else None) == name
    assert found is None or found.count == count
    assert [other.name for other in PROFILES if fits(one, other)] == (
        [name] if name and count in (1, 2) else []
    )


def test_the_cheapest_comes_first_in_each_region_that_has_one():
    """Types of several cards, or of none, are not taken for one card."""
    assert tried(profile=profile("a100_40gb")) == [
        ("gpu_1x_a100_sxm4", EAST),
        ("gpu_1x_a100_sxm4", WEST),
        ("gpu_1x_a100", WEST),
    ]
    assert tried(profile=profile("a100_80gb").of_cards(8)) == [("gpu_8x_a100_80gb_sxm4", EAST)]
    assert [one.type for one in by_price(ALL)][:3] == ["cpu_4x_general", "gpu_1x_rtx6000", "gpu_1x_a10"]
    assert tried()[0] == ("gpu_1x_rtx6000", WEST)


def test_named_types_and_regions_come_in_their_order():
    """The price decides no more; regions that were not named are left out."""
    assert tried(types=["gpu_1x_a100", "gpu_1x_a10"]) == [
        ("gpu_1x_a100", WEST),
        ("gpu_1x_a10", EAST),
        ("gpu_1x_a10", WEST),
    ]
    assert tried(types=["gpu_1x_a10"], regions=[WEST, EAST]) == [("gpu_1x_a10", WEST), ("gpu_1x_a10", EAST)]
    assert tried(profile=profile("a100_40gb"), regions=[EAST]) == [("gpu_1x_a100_sxm4", EAST)]


def test_what_it_costs():
    """Expected and at most; a limit in money is one in time, in whole minutes."""
    (one,) = candidates("lambda", [A100], EIGHT, expected_hours=2.5)
    assert (one.limit_s, one.expected, dollars(one.largest)) == (8 * 3600, 498, "$15.92")
    (one,) = candidates("lambda", [A100], Limits(max_cents=1000), expected_hours=100)
    assert one.limit_s == 301 * 60
    assert one.expected == one.largest == cents(301 * 60, 199) <= 1000
    (one,) = candidates("lambda", [A100], Limits(max_hours=1, max_cents=1000))
    assert (one.limit_s, one.expected) == (3600, None)


@pytest.mark.parametrize("price", [69, 129, 199, 2232, 3192])
@pytest.mark.parametrize("most", [100, 777, 5000])
def test_the_largest_cost_is_never_above_the_limit(price, most):
    """With any price and limit that let something boot."""
    one = offer("gpu_1x_x", "X (10 GB)", price, EAST)
    if cents(boot_limit_s(1), price) <= most:
        (found,) = candidates("lambda", [one], Limits(max_cents=most))
        assert most - 2 * price // 60 - 2 <= found.largest <= most
    else:
        with pytest.raises(RefusedError):
            candidates("lambda", [one], Limits(max_cents=most))


def test_without_a_limit_nothing_is_rented():
    """The message proposes one, with what it costs."""
    with pytest.raises(
        RefusedError, match=r"max_hours = 8 .* at most \$15.12 with gpu_1x_a100_sxm4 at \$1.89/h"
    ):
        candidates("lambda", ALL, Limits(), profile=profile("a100_40gb"))
    with pytest.raises(RefusedError, match="max_hours = 5 "):
        candidates("lambda", ALL, Limits(), profile=profile("a100_40gb"), expected_hours=2.2)


def test_a_limit_of_one_cent_rents_nothing():
    """Nor does any that is used up while the instance boots."""
    with pytest.raises(RefusedError, match="nothing was rented"):
        candidates("lambda", ALL, Limits(max_cents=1))
    with pytest.raises(RefusedError, match=r"allows 12 minutes of gpu_1x_a10 at .*may take 15 to boot"):
        candidates("lambda", ALL, Limits(max_hours=0.2), types=["gpu_1x_a10"])
    with pytest.raises(RefusedError, match="30 to boot"):
        candidates("lambda", ALL, Limits(max_hours=0.4), types=["gpu_8x_a100_80gb_sxm4"])
    cheap = candidates("lambda", ALL, Limits(max_cents=500), types=["gpu_8x_a100_80gb_sxm4", "gpu_1x_a10"])
    assert {one.offer.type for one in cheap} == {"gpu_1x_a10"}


def test_nothing_free_is_no_refusal_for_ever():
    """It can be waited for; with named regions the others are said."""
    with pytest.raises(CardBusyError, match="none free of gpu_1x_h100_pcie") as caught:
        candidates("lambda", ALL, EIGHT, profile=profile("h100"))
    assert "--wait" in str(caught.value)
    with pytest.raises(CardBusyError, match=f"in {EAST}; free in {WEST}"):
        candidates("lambda", ALL, EIGHT, types=["gpu_1x_a100"], regions=[EAST])


def test_what_does_not_fit_is_named():
    """A type that is not offered, one of another card, a card that is not offered."""
    with pytest.raises(UnknownNameError, match="did you mean 'gpu_1x_a10'"):
        candidates("lambda", ALL, EIGHT, types=["gpu_1x_a101"])
    with pytest.raises(RefusedError, match=r"gpu_1x_a10 .* is not A100 40 GB"):
        candidates("lambda", ALL, EIGHT, types=["gpu_1x_a10"], profile=profile("a100_40gb"))
    with pytest.raises(RefusedError, match="no type has L40S 48 GB"):
        candidates("lambda", ALL, EIGHT, profile=profile("l40s"))
