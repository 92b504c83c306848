"""Renting in bad luck: marks that are lost or copied, wrong answers, a ledger that is damaged, full or gone."""

import json
import shutil

import pytest
from testbed.lambda_client import REGION, RUN, SETUP, is_anything_billed, offer
from testbed.tables import mostly_long

from launcher.errors import BadFileError, RefusedError, ServiceError, UnknownOutcomeError
from launcher.rental.lease.renter import ProviderAccount
from launcher.rental.ledger import RentalLedger
from launcher.rental.provider import ProviderReason
from launcher.rental.reconcile import reconcile, survey
from launcher.rental.renting import RentalReason, RentalState
from launcher.rental.verdict import SETTLE_S, RentalVerdict

HOURS = 3600.0


def rent(renter, run=RUN):
    return renter.rent(offer(), REGION, run, renter.clock.now() + 8 * HOURS, SETUP)


def ready(renter, run=RUN):
    rental, lock = rent(renter, run)
    renter.wait_until_ready(rental, 900, lambda *_: None)
    return renter.ledger.rental(rental.nonce), lock


def stranger(lambda_service, name="research", tags=None):
    return lambda_service.state.stranger(lambda_service.state.accounts[0], name, tags)


def test_an_answer_that_names_a_strangers_instance_ends_no_stranger(renter, lambda_service):
    """It carries no mark of ours: it is left alone, and that is said with the way to end it by name."""
    other = stranger(lambda_service)
    lambda_service.fail("launch", "answer", data={"instance_ids": [other.id]})
    rental, lock = rent(renter)
    with pytest.raises(ServiceError, match=f"--adopt {other.id}") as caught:
        renter.wait_until_ready(rental, 900, lambda *_: None)
    assert caught.value.reason == RentalReason.STILL_BILLED
    lock.release()
    done = reconcile(renter)
    assert lambda_service.terminated() == set()
    assert done.is_anything_left
    assert [one.verdict for one in done.judged] == [RentalVerdict.STRANGER]
    assert not is_anything_billed(reconcile(renter, adopted=[other.id]))
    assert lambda_service.terminated() == {other.id}
    assert renter.ledger.rental(rental.nonce).state is RentalState.ENDED


def test_a_second_id_in_an_answer_is_not_believed_either(renter, lambda_service):
    """Only what carries the mark is ended."""
    other = stranger(lambda_service)
    launch = renter.provider.launch
    renter.provider.launch = lambda intent, setup: (*launch(intent, setup), other.id)
    rental, _ = rent(renter)
    renter.wait_until_ready(rental, 900, lambda *_: None)
    renter.end(rental, "done")
    assert lambda_service.terminated() == {rental.instance}


def test_an_instance_that_was_renamed_and_lost_its_tags_is_still_ours(renter, lambda_service):
    """Its id was seen with our mark: it is not taken for gone, and it is ended."""
    rental, lock = ready(renter)
    (made,) = lambda_service.alive()
    made.body |= {"name": "my machine", "tags": []}
    assert survey(renter)[0].verdict is RentalVerdict.WANTED
    lock.release()
    assert not is_anything_billed(reconcile(renter))
    assert lambda_service.alive() == []
    assert renter.ledger.rental(rental.nonce).state is RentalState.ENDED


@pytest.mark.parametrize("what", ["name", "tag"])
def test_a_mark_that_was_cut_off_is_known_by_the_other_one(renter, lambda_service, what):
    """The service may shorten a name, or the value of a tag."""

    def cut(line):
        if line["call"] == "launch":
            body = lambda_service.alive()[0].body
            if what == "name":
                body["name"] = body["name"][:-5]
            else:
                body["tags"] = [{**tag, "value": tag["value"][:7]} for tag in body["tags"]]

    lambda_service.after = cut
    lambda_service.fail("launch", "lost")
    rental, lock = rent(renter)
    assert [one.id for one in lambda_service.alive()] == [rental.instance]
    lock.release()
    reconcile(renter)
    assert lambda_service.alive() == []


def test_a_copied_mark_on_another_kind_of_instance_is_a_strangers(renter, lambda_service):
    """Whoever made it copied our tags: it is not what we launched."""
    rental, lock = rent(renter)
    (made,) = lambda_service.alive()
    copied = {tag["key"]: tag["value"] for tag in made.body["tags"]}
    others = [stranger(lambda_service, made.body["name"], copied) for _ in range(2)]
    others[0].type = lambda_service.state.kinds["gpu_1x_a100"]
    others[1].body["region_name"] = "us-west-1"
    renter.wait_until_ready(rental, 900, lambda *_: None)
    renter.end(rental, "done")
    lock.release()
    reconcile(renter)
    assert lambda_service.terminated() == {rental.instance}


@mostly_long("status", [403, 409, 400], ci=(0,))
def test_one_end_that_is_refused_keeps_no_other(renter, lambda_service, status):
    """The others end. Only what the account may never do is given up, with its reason."""
    first, lock = ready(renter)
    lock.release()
    second, lock = ready(renter, "261122-other-aaaaaa")
    lock.release()

    def refuse(line):
        if line["call"] == "terminate" and first.instance in line["body"]["instance_ids"]:
            lambda_service.fail("terminate", "status", status=status)

    lambda_service.before = refuse
    if status == 403:
        with pytest.raises(ServiceError) as caught:
            reconcile(renter)
        assert caught.value.reason == ProviderReason.FORBIDDEN
    else:
        assert reconcile(renter).is_anything_left
    assert [one.id for one in lambda_service.alive()] == [first.instance]
    assert renter.ledger.rental(second.nonce).state is RentalState.ENDED
    assert renter.ledger.rental(first.nonce).is_open
    lambda_service.before = lambda _line: None
    assert not is_anything_billed(reconcile(renter))


def test_an_end_that_is_refused_while_it_boots_is_asked_for_again(renter, lambda_service):
    """It may be in the middle of something."""
    rental, _ = rent(renter)
    lambda_service.fail("terminate", "status", status=409, code="global/conflict", times=3)
    assert renter.end(rental, "done").state is RentalState.ENDED
    assert lambda_service.alive() == []


def hide(lambda_service, times):
    lambda_service.fail("instances", "answer", data=[], times=times)
    lambda_service.fail("terminate", "status", status=404, code="global/object-does-not-exist", times=times)


def test_an_end_before_an_instance_shows_waits_for_it(renter, lambda_service):
    """The provider knows no such instance for a while, and bills it afterwards."""
    rental, _ = rent(renter)
    hide(lambda_service, 6)
    assert renter.end(rental, "interrupted").state is RentalState.ENDED
    assert lambda_service.alive() == []
    assert lambda_service.terminated() == {rental.instance}


def test_an_instance_that_never_shows_is_gone_after_a_while(renter, lambda_service):
    """One that was ready has been shown: it is gone at once."""
    new, _ = rent(renter)
    hide(lambda_service, 99)
    assert renter.end(new, "interrupted").ended >= new.launched + SETTLE_S
    lambda_service._faults.clear()
    shown, _ = ready(renter, "261122-other-aaaaaa")
    began = renter.clock.now()
    hide(lambda_service, 99)
    assert renter.end(shown, "done").ended < began + 30


def test_a_ledger_that_goes_away_keeps_no_end(renter, lambda_service, tmp_path):
    """At whatever step: what this process rented it ends, and its cost is right."""
    rental, _ = ready(renter)
    shutil.rmtree(tmp_path / "rentals")
    renter.clock.sleep(HOURS)
    ended = renter.end(rental, "done")
    assert lambda_service.alive() == []
    assert (ended.state, ended.is_open) == (RentalState.ENDED, False)
    assert ended.cents_at(renter.clock.now()) >= 129
    rental, _ = rent(renter)
    shutil.rmtree(tmp_path / "rentals")
    with pytest.raises(FileNotFoundError):
        renter.wait_until_ready(rental, 900, lambda *_: None)
    renter.end(rental, "done")
    assert lambda_service.alive() == []


def test_a_disk_that_fills_up_during_the_launch(renter, lambda_service, small_disk):
    """What was rented cannot be recorded: it is ended at once. A rented machine is ended on a full disk too."""
    rental, _ = rent(renter)  # of which the first line is so long; the next one is to need another page
    size = len(f'{{"kind": "intent", {rental.intent.model_dump_json()[1:]}'.encode())
    renter.end(rental, "done")
    at = ProviderAccount(
        renter.provider, RentalLedger(small_disk / "rentals"), renter.clock, "c" * (4070 - size)
    )
    first, _ = ready(at)

    def fill(line):
        if line["call"] == "launch":
            fill_up(small_disk)

    lambda_service.after = fill
    with pytest.raises(RefusedError, match="No space left"):
        rent(at)
    assert [one.id for one in lambda_service.alive()] == [first.instance]
    assert at.end(first, "done").state is RentalState.ENDED
    assert lambda_service.alive() == []
    for path in small_disk.glob("filler*"):
        path.unlink()
    at.clock.sleep(SETTLE_S)
    assert not is_anything_billed(reconcile(at))


def fill_up(folder):
    for size in (1 << 16, 1 << 12, 1):
        with (folder / f"filler-{size}").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "launched", "time": "yesterday"},
        {"kind": "extra"},
        {"kind": "extra", "instance": ["i"]},
        {"kind": "extra", "instance": "i", "cents": "many"},
        {"kind": "ended", "time": 1, "cents": -5},
        {"kind": "missing", "time": {}},
        {"kind": "launched", "time": 1, "instance": 7},
    ],
    ids=str,
)
def test_a_damaged_line_makes_a_rental_unreadable(renter, lambda_service, tmp_path, line):
    """It is reported, and no command fails by it; whoever rented still ends it."""
    rental, _ = ready(renter)
    path = tmp_path / "rentals" / f"{rental.nonce}.jsonl"
    path.write_bytes(path.read_bytes() + json.dumps(line).encode() + b"\n")
    with pytest.raises(BadFileError, match="damaged"):
        renter.ledger.rental(rental.nonce)
    assert renter.ledger.unreadable() == (path,)
    assert reconcile(renter).is_anything_left
    assert lambda_service.terminated() == set()
    renter.end(rental, "done")
    assert lambda_service.alive() == []


def test_a_price_that_rose_since_the_offer_is_not_paid(renter, lambda_service):
    """The machine is ended before it is used, and its cost is by the price that is charged."""
    lambda_service.state.kinds["gpu_1x_a10"].cents = 12900
    rental, lock = rent(renter)
    with pytest.raises(ServiceError, match=r"\$129\.00, and not \$1\.29") as caught:
        renter.wait_until_ready(rental, 900, lambda *_: None)
    lock.release()
    assert caught.value.reason == RentalReason.PRICE
    assert lambda_service.alive() == []
    ended = renter.ledger.rental(rental.nonce)
    assert ended.state is RentalState.ENDED
    assert ended.cents >= 215  # a minute at that price


def with_instance(lambda_service, **values):
    """Let the next list have its instances with other values, and the raw answer go past the stand-in's own checks."""
    (one,) = lambda_service.alive()
    shown = {**lambda_service.state.instances(lambda_service.state.accounts[0], None, "")[0], **values}
    lambda_service.fail("instances", "answer", data=[shown])
    return one


@pytest.mark.parametrize(
    "values",
    [
        {"status": "active", "ip": "$(reboot)"},
        {"status": "active", "ip": "-oProxyCommand=x"},
        {"status": "active", "ip": "evil.example"},
        {"status": "active", "ip": ["10.0.0.1"]},
        {"status": ["active"], "ip": "10.0.0.1"},
        {"status": "\x1b[2Jactive", "ip": "10.0.0.1"},
        {"instance_type": {"name": "gpu_1x_a10", "price_cents_per_hour": -5}},
        {"instance_type": {"name": "gpu_1x_a10", "price_cents_per_hour": 10**30}},
        {"instance_type": {"name": 7}},
        {"region": "us-east-1"},
        {"tags": "launch:nonce"},
        {"name": 5},
    ],
    ids=str,
)
def test_a_field_of_nonsense_is_not_used(renter, lambda_service, values):
    """Neither as an address, nor as a price, nor on a terminal."""
    rental, _ = rent(renter)
    with_instance(lambda_service, **values)
    (seen,) = renter.provider.instances()
    assert not seen.is_ready
    assert seen.word.isprintable()
    assert seen.cents_per_hour in (None, 129)
    renter.wait_until_ready(rental, 900, lambda *_: None)


@pytest.mark.parametrize("bad", ["x; reboot", "../ssh-keys", "", "a b", "\x1b[2J", 5, None])
def test_an_id_of_nonsense_makes_the_list_unreadable(renter, lambda_service, bad):
    """It would stand in commands that are shown, and in addresses; a list that is wrong ends nothing."""
    rental, _ = rent(renter)
    with_instance(lambda_service, id=bad)
    with pytest.raises(ServiceError) as caught:
        renter.provider.instances()
    assert caught.value.reason == ProviderReason.MALFORMED
    lambda_service.fail("launch", "answer", data={"instance_ids": [bad]})
    with pytest.raises(UnknownOutcomeError):
        renter.provider.launch(rental.intent, SETUP)


def test_offers_of_nonsense_are_left_out(renter, lambda_service):
    """Prices and sizes that no machine has, and names that would do something on a terminal or in a command."""
    types = lambda_service.state.types(None, None, "")
    good = types["gpu_1x_a10"]["instance_type"]

    def offer_of(**values):
        return {"instance_type": {**good, **values}, "regions_with_capacity_available": []}

    bad = [
        {"name": "gpu; reboot"},
        {"name": "\x1b[2J"},
        {"price_cents_per_hour": 0},
        {"price_cents_per_hour": -1},
        {"price_cents_per_hour": 1.5},
        {"price_cents_per_hour": "129"},
        {"price_cents_per_hour": 10**400},
        {"specs": {**good["specs"], "gpus": 10**12}},
        {"specs": {**good["specs"], "gpus": -1}},
        {"specs": None},
    ]
    answer = {str(number): offer_of(**values) for number, values in enumerate(bad)}
    shown = {"description": "\x1b[2J1x A10", "gpu_description": "\x07A10 (24 GB)", "later": {"x": 1}}
    lambda_service.fail("types", "answer", data={**answer, "good": offer_of(**shown), "twin": offer_of()})
    found = renter.provider.offers()
    assert [one.type for one in found] == ["gpu_1x_a10", "gpu_1x_a10"]
    assert all(one.title.isprintable() and one.card.isprintable() for one in found)
    lambda_service.fail("types", "answer", data=answer)
    with pytest.raises(ServiceError) as caught:
        renter.provider.offers()
    assert caught.value.reason == ProviderReason.MALFORMED


def test_a_list_that_lacks_an_instance_does_not_make_it_gone(renter, lambda_service):
    """Every time: it is asked for by its id, and ended."""
    rental, lock = ready(renter)
    lock.release()
    lambda_service.fail("instances", "answer", data=[], times=3)
    reconcile(renter)
    assert lambda_service.alive() == []
    assert lambda_service.terminated() == {rental.instance}
    assert not is_anything_billed(reconcile(renter))
