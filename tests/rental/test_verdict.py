"""The verdict on each instance and rental, as a table."""

import pytest
from testbed.sim_clock import START

from launcher.rental.renting import ExtraInstance, Instance, InstanceState, Intent, Rental, RentalState
from launcher.rental.verdict import GRACE_S, SETTLE_S, RentalVerdict, first_of, judge

S, I = RentalState, InstanceState  # noqa: E741
DEADLINE = START + 3600


def rental(state=S.READY, nonce="n", instance="i", **values):
    intent = Intent(
        provider="lambda",
        account="lambda-1",
        run="run-1",
        nonce=nonce,
        client="laptop",
        type="gpu_1x_a10",
        region="us-east-1",
        cents_per_hour=129,
        time=START,
        deadline=DEADLINE,
    )
    return Rental(intent=intent, state=state, instance=instance, launched=START, **values)


def listed(instance_id="i", nonce="n", state=I.ACTIVE, ip="10.0.0.1"):
    return Instance(instance_id, state, state.value, nonce, ip=ip)


def verdicts(rentals, instances, now=START + 60, **values):
    found = judge(rentals, instances, account=values.pop("account", "lambda-1"), now=now, **values)
    return [(one.verdict, one.instance.id if one.instance else None) for one in found]


HELD, WANTED = {"held": ["n"]}, {"wanted": ["run-1"]}
CASES = [
    (S.INTENT, HELD, 60, RentalVerdict.WANTED),
    (S.INTENT, {}, 60, RentalVerdict.ORPHAN),
    (S.INTENT, WANTED, 60, RentalVerdict.ORPHAN),  # nobody knows its address: no run can need it
    (S.LAUNCHED, HELD, 60, RentalVerdict.WANTED),
    (S.LAUNCHED, {}, 60, RentalVerdict.ORPHAN),
    (S.READY, {}, 60, RentalVerdict.ORPHAN),
    (S.READY, WANTED, 60, RentalVerdict.WANTED),
    (S.READY, {"wanted": ["run-2"]}, 60, RentalVerdict.ORPHAN),
    (S.READY, {"held": ["m"]}, 60, RentalVerdict.ORPHAN),
    (S.READY, WANTED, 3600, RentalVerdict.DUE),
    (S.READY, HELD, 3600, RentalVerdict.WANTED),
    (S.READY, HELD, 3600 + GRACE_S, RentalVerdict.DUE),
    (S.DISMISSED, {}, 60, RentalVerdict.STRANGER),  # its key is back: the user wanted to hear of it no more
    (S.DISMISSED, {}, 3600, RentalVerdict.DUE),
    (S.ENDING, HELD, 60, RentalVerdict.WANTED),
    (S.ENDING, WANTED, 60, RentalVerdict.ORPHAN),
    (S.ENDED, {**HELD, **WANTED}, 60, RentalVerdict.ORPHAN),
    (S.UNSEEN, {**HELD, **WANTED}, 60, RentalVerdict.ORPHAN),
    (S.REFUSED, {**HELD, **WANTED}, 60, RentalVerdict.ORPHAN),
]


@pytest.mark.parametrize(("state", "about", "after_s", "verdict"), CASES, ids=str)
@pytest.mark.parametrize("word", [I.BOOTING, I.ACTIVE, I.UNHEALTHY, I.ENDING, I.PREEMPTED, I.UNKNOWN])
def test_an_instance_of_a_rental(state, about, after_s, verdict, word):
    """Whatever the provider says that it does: all but what is gone is billed."""
    known = rental(state, instance=None if state in (S.INTENT, S.UNSEEN, S.REFUSED) else "i")
    assert verdicts([known], [listed(state=word)], START + after_s, **about) == [(verdict, "i")]


@pytest.mark.parametrize("nonce", ["", "m", "N", "n "])
def test_what_carries_no_nonce_of_ours_is_a_stranger_s(nonce):
    """Also if nothing is held; it is ended only if the user named it."""
    known = rental(S.ENDED)
    assert verdicts([known], [listed(nonce=nonce)]) == [(RentalVerdict.STRANGER, "i")]
    assert verdicts([known], [listed(nonce=nonce)], adopted=["i"]) == [(RentalVerdict.ADOPTED, "i")]
    assert verdicts([], [listed(nonce=nonce)], adopted=["j"]) == [(RentalVerdict.STRANGER, "i")]


def test_what_is_gone_is_not_judged():
    """Whether the provider still lists it or not."""
    assert verdicts([rental(S.ENDED)], [listed(state=I.GONE)]) == []
    assert verdicts([rental(S.ENDED)], []) == []


MISSING = [
    (S.INTENT, {}, None, RentalVerdict.UNSETTLED),
    (S.INTENT, {}, SETTLE_S - 1, RentalVerdict.UNSETTLED),
    (S.INTENT, {}, SETTLE_S, RentalVerdict.GONE),
    (S.INTENT, HELD, SETTLE_S, RentalVerdict.WANTED),
    (S.LAUNCHED, {}, None, RentalVerdict.UNSETTLED),
    (S.LAUNCHED, {}, SETTLE_S, RentalVerdict.GONE),
    (S.READY, {}, None, RentalVerdict.GONE),
    (S.ENDING, {}, None, RentalVerdict.GONE),
    (S.ENDING, {"account": "lambda-2"}, None, RentalVerdict.ELSEWHERE),
    (S.INTENT, {"account": "lambda-2"}, SETTLE_S, RentalVerdict.ELSEWHERE),
]


@pytest.mark.parametrize(("state", "about", "missing_s", "verdict"), MISSING, ids=str)
def test_a_rental_without_an_instance(state, about, missing_s, verdict):
    """A launch may appear for five minutes after it was first missed; what was seen and is not listed has gone."""
    known = rental(state, missing_since=None if missing_s is None else START)
    assert verdicts([known], [], START + (missing_s or 0), **about) == [(verdict, None)]


def test_of_several_instances_one_is_kept():
    """The recorded one; else the one that has come further, else the lower id: the same for every client."""
    two = [listed("b"), listed("a", state=I.BOOTING, ip=None)]
    assert first_of(rental(S.LAUNCHED, instance="a"), two).id == "a"
    assert first_of(rental(S.INTENT, instance=None), two).id == "b"
    assert first_of(rental(S.INTENT, instance=None), [listed("b"), listed("a")]).id == "a"
    assert first_of(rental(S.LAUNCHED, instance="c"), two) is None
    assert first_of(rental(S.INTENT, instance=None, extras=(ExtraInstance("b"),)), two).id == "a"
    assert verdicts([rental(S.LAUNCHED, instance="a")], two, **HELD) == [
        (RentalVerdict.ORPHAN, "b"),
        (RentalVerdict.WANTED, "a"),
    ]


def test_an_extra_that_has_gone_is_settled():
    """Its rental is open until its cost is known."""
    known = rental(S.ENDED, cents=5, extras=(ExtraInstance("j"),))
    assert verdicts([known], []) == [(RentalVerdict.GONE, None)]
    assert verdicts([rental(S.ENDED, cents=5, extras=(ExtraInstance("j", 3),))], []) == []
