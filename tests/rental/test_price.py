"""What is rented: which types fit a profile, in which order, for how long, and what that costs."""

import pytest
from testbed.client import REPOSITORY

from launcher.base.toml import read_toml
from launcher.errors import CardBusyError, RefusedError, UnknownNameError
from launcher.rental import price
from launcher.rental.offers import OfferFilter, by_price, card_memory, fits, profile_of
from launcher.rental.price import Expected
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.renting import InstanceOffer, cents, dollars
from launcher.values.parsing import build
from launcher.values.profile import Profile

EAST, WEST = "us-east-1", "us-west-1"


def profile(name):
    path = REPOSITORY / "profiles" / f"{name}.toml"
    data, text = read_toml(path)
    return build(Profile, data, file=path.name, text=text)


PROFILES = [profile(path.stem) for path in sorted((REPOSITORY / "profiles").glob("*.toml"))]


def offer(name, description, cents_per_hour, *regions, cards=1):
    card, memory_gb = card_memory(name, description)
    about = {"type": name, "title": f"{cards}x {description}", "card": card, "memory_gb": memory_gb}
    return InstanceOffer(**about, cards=cards, cents_per_hour=cents_per_hour, regions=regions)


A10 = offer("gpu_1x_a10", "A10 (24 GB PCIe)", 129, EAST, WEST)
A100 = offer("gpu_1x_a100", "A100 (40 GB PCIe)", 199, WEST)
A100_SXM = offer("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", 189, EAST, WEST)
A100_8 = offer("gpu_8x_a100_80gb_sxm4", "A100 (80 GB SXM4)", 2232, EAST, cards=8)
H100 = offer("gpu_1x_h100_pcie", "H100 (80 GB PCIe)", 329)
RTX = offer("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 69, WEST)
CPU = offer("cpu_4x_general", "N/A", 10, EAST, cards=0)
X900 = offer("gpu_1x_x900", "X900 (24 GB PCIe)", 9999)
ALL = [A10, X900, A100, A100_SXM, A100_8, H100, RTX, CPU]
EIGHT = LambdaSettings(max_hours=8)


def wish(*named, **values):
    return OfferFilter(
        [profile(name) if isinstance(name, str) else name for name in named], PROFILES, **values
    )


def chosen(*named, regions=(), **values):
    settings = EIGHT.model_copy(update={"region": tuple(regions)})
    return price.priced("lambda", settings, ALL, wish(*named, **values))


def tried(*named, **values):
    return [(one.priced.offer.type, one.region) for one in chosen(*named, **values).candidates()]


def priced(offers, limits, asked, *expected):
    return price.priced("lambda", limits, offers, asked, *expected).found


def types(limits, *named, **values):
    return [one.offer.type for one in priced(ALL, limits, wish(*named, **values))]


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
        (offer("gpu_1x_gh200", "GH200 (96 GB)", 1), "gh200_96gb", 1),
        (offer("gpu_1x_h100_new", "H100 (94 GB)", 1), "h100_94gb", 1),
        (offer("gpu_1x_h100_other", "H100 (64 GB)", 1), None, 1),
        (RTX, "rtx_6000_24gb", 1),
        (A10, "a10_24gb", 1),
        (offer("gpu_8x_v100", "Tesla V100 (16 GB)", 1, cards=8), "v100_16gb", 8),
        (offer("gpu_1x_a6000", "A6000 (48 GB)", 1), "rtx_a6000_48gb", 1),
        (offer("gpu_8x_b200_sxm6", "B200 (180 GB SXM6)", 1, cards=8), "b200_180gb", 8),
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
    assert tried("a100_40gb") == [
        ("gpu_1x_a100_sxm4", EAST),
        ("gpu_1x_a100_sxm4", WEST),
        ("gpu_1x_a100", WEST),
    ]
    assert tried("a100_80gb", cards=8) == [("gpu_8x_a100_80gb_sxm4", EAST)]
    assert [one.type for one in by_price(ALL)][:3] == ["cpu_4x_general", "gpu_1x_rtx6000", "gpu_1x_a10"]


def test_of_several_profiles_the_cheapest_that_has_one_of_their_cards_comes_first():
    assert types(EIGHT, "h100", "a100_40gb") == ["gpu_1x_a100_sxm4", "gpu_1x_a100", "gpu_1x_h100_pcie"]


def test_without_a_profile_it_is_the_cheapest_free_card_that_has_one_and_no_other():
    """What is rented instead, if that has gone, has the same cards: not eight of them at eleven times the price.

    One with another processor than all others is rented to whoever asks for it.
    """
    assert tried() == [("gpu_1x_rtx6000", WEST)]
    arm = offer("gpu_1x_gh200", "GH200 (96 GB)", 1, EAST)
    found = priced([arm, A100, A100_SXM, A100_8], EIGHT, wish())
    assert [one.offer.type for one in found] == ["gpu_1x_a100_sxm4", "gpu_1x_a100"]
    for asked in (wish("gh200_96gb"), wish(types=["gpu_1x_gh200"])):
        assert [one.offer for one in priced([arm, A100], EIGHT, asked)] == [arm]
    rented_out = [one.model_copy(update={"regions": ()}) for one in (A100, A100_SXM)]
    found = priced([X900.model_copy(update={"regions": (EAST,)}), A100_8, *rented_out], EIGHT, wish())
    assert [(one.offer.type, one.profile.name, one.profile.count) for one in found] == [
        ("gpu_8x_a100_80gb_sxm4", "a100_80gb", 8)
    ]
    assert [one.offer.type for one in priced(rented_out, EIGHT, wish())] == [
        "gpu_1x_a100_sxm4",
        "gpu_1x_a100",
    ]


def test_named_types_and_regions_come_in_their_order():
    """The price decides no more; regions that were not named are left out."""
    two = ["gpu_8x_a100_80gb_sxm4", "gpu_1x_a100_sxm4"]
    assert tried(types=two) == [
        ("gpu_8x_a100_80gb_sxm4", EAST),
        ("gpu_1x_a100_sxm4", EAST),
        ("gpu_1x_a100_sxm4", WEST),
    ]
    assert tried(types=two[1:], regions=[WEST, EAST]) == [(two[1], WEST), (two[1], EAST)]
    assert tried("a100_40gb", regions=[EAST]) == [("gpu_1x_a100_sxm4", EAST)]


def test_all_cards_of_a_named_type_are_planned_for():
    """They are paid for."""
    (found,) = priced(ALL, EIGHT, wish(types=["gpu_8x_a100_80gb_sxm4"]))
    assert (found.profile.name, found.profile.count, found.profile.title) == (
        "a100_80gb",
        8,
        "8 x A100 80 GB",
    )


def test_what_it_costs():
    """Expected and at most; a limit in money is one in time, in whole minutes."""

    def lasting(hours):
        return lambda _profile: Expected(hours, "as before")

    (one,) = priced([A100], EIGHT, wish("a100_40gb"), lasting(2.5))
    assert (one.limit_s, one.expected, dollars(one.largest), one.why_expected) == (
        8 * 3600,
        498,
        "$15.92",
        "as before",
    )
    (one,) = priced([A100], LambdaSettings(max_cost=10), wish("a100_40gb"), lasting(100))
    assert one.limit_s == 301 * 60
    assert one.expected == one.largest == cents(301 * 60, 199) <= 1000
    (one,) = priced([A100], LambdaSettings(max_hours=1, max_cost=10), wish("a100_40gb"))
    assert (one.limit_s, one.expected) == (3600, None)


@pytest.mark.parametrize("hourly", [69, 129, 199, 2232, 3192])
@pytest.mark.parametrize("most", [100, 777, 5000])
def test_the_largest_cost_is_never_above_the_limit(hourly, most):
    """With any price and limit that let something boot."""
    one = offer("gpu_1x_a100", "A100 (40 GB)", hourly, EAST)
    if cents(900, hourly) <= most:
        (found,) = priced([one], LambdaSettings(max_cost=most / 100), wish())
        assert most - 2 * hourly // 60 - 2 <= found.largest <= most
    else:
        with pytest.raises(RefusedError):
            priced([one], LambdaSettings(max_cost=most / 100), wish())


def test_a_limit_of_one_cent_rents_nothing():
    """Nor does any that is used up while the instance boots."""
    with pytest.raises(RefusedError, match="nothing was rented"):
        types(LambdaSettings(max_cost=0.01))
    with pytest.raises(RefusedError, match=r"allows 12 minutes of gpu_1x_a100 at .*may take 15 to boot"):
        types(LambdaSettings(max_hours=0.2), types=["gpu_1x_a100"])
    with pytest.raises(RefusedError, match="30 to boot"):
        types(LambdaSettings(max_hours=0.4), types=["gpu_8x_a100_80gb_sxm4"])
    cheap = types(LambdaSettings(max_cost=5), types=["gpu_8x_a100_80gb_sxm4", "gpu_1x_a100"])
    assert cheap == ["gpu_1x_a100"]


def test_nothing_free_is_no_refusal_for_ever():
    """It can be waited for; with named regions the others are said."""
    assert types(EIGHT, "h100") == ["gpu_1x_h100_pcie"]
    with pytest.raises(CardBusyError, match="none free of gpu_1x_h100_pcie") as caught:
        tried("h100")
    assert "--wait" in str(caught.value)
    with pytest.raises(CardBusyError, match=f"in {EAST}; free in {WEST}"):
        tried(types=["gpu_1x_a100"], regions=[EAST])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (wish("a100_40gb", types=["gpu_1x_a10"]), "gpu_1x_a10 .* is not A100 40 GB\n  leave `type` out"),
        (wish("a100_80gb", types=["gpu_8x_a100_80gb_sxm4"]), "is not A100 80 GB\n  all its cards   --gpus 8"),
        (wish("l40s"), "no type has L40S 48 GB\n  available types   launch offers"),
        (wish("cpu"), "no type has CPU"),
        (wish("a100_80gb"), "no type has A100 80 GB\n  it has 8 of them   --gpus 8"),
        (wish("a100_40gb", cards=2), "no type has 2 x A100 40 GB\n  it has 1 of them   --gpus 1"),
        (wish(types=["gpu_1x_x900"]), 'a card that no profile names\n  write .*"NVIDIA X900"'),
        (wish(types=["gpu_1x_a100"], cards=2), "does not have 2 cards"),
        (wish(cards=3), "no type has 3 cards that a profile names"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_what_does(asked, words):
    with pytest.raises(RefusedError, match=words):
        priced(ALL, EIGHT, asked)


def test_a_type_that_is_not_offered_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'gpu_1x_a10'"):
        types(EIGHT, types=["gpu_1x_a101"])


def test_what_is_free_elsewhere_is_said():
    """Beside how long to wait for one."""
    with pytest.raises(CardBusyError) as caught:
        tried("a100_40gb", regions=["us-west"])
    assert "in us-west; free in us-east-1" in str(caught.value)
    assert "--wait 30m" in str(caught.value)
