"""What every provider of machines by the hour keeps: the same assertions for a toy of one module and for Lambda Cloud.

The witness is each cloud's own account of its machines and of what they cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from testbed import lambda_client, toy_cloud
from testbed.lambda_client import RUN, SETUP

from launcher.errors import ServiceAuthError, ServiceError
from launcher.rental import provider
from launcher.rental.lease import instance_keys
from launcher.rental.lease.renter import ProviderAccount, open_account
from launcher.rental.ledger import RentalLedger
from launcher.rental.provider import ProviderReason
from launcher.rental.reconcile import reconcile
from launcher.rental.renting import RentalReason, RentalState

HOUR = 3600.0


class Machine(NamedTuple):
    """A machine by the account of its cloud, and whether nobody has asked to end it yet."""

    id: str
    nonce: str
    is_alive: bool


class ToyPlace:
    """The toy."""

    type, region = toy_cloud.TYPE, toy_cloud.REGION

    def __init__(self, folder, clock, cloud):
        self._folder, self._clock, self.cloud = folder, clock, cloud

    def renter(self):
        """Return a client with a ledger of its own folder."""
        account = provider.module_of("toy").connect(toy_cloud.API, lambda _date: None)
        return ProviderAccount(account, RentalLedger(self._folder / "rentals"), self._clock, "laptop")

    def fail_launch(self, how, wait_s=0.0):
        """Let the next launch go wrong."""
        self.cloud.faults["launch"] = [f"{how} {wait_s}" if how == "late" else how]

    def set_capacity(self, count):
        """Have so many free."""
        self.cloud.free = count

    def set_price(self, cents):
        """Have an hour cost so much."""
        self.cloud.cents = cents

    def set_key(self, *, is_valid):
        """Take or refuse the client's key."""
        self.cloud.is_key_valid = is_valid

    def lie(self, count):
        """Answer so many ends of the first machine, and end nothing."""
        self.cloud.machines[0].lies = count

    def stranger(self):
        """Launch a machine that is not ours; return its id."""
        return self.cloud.make(lambda_client.intent(nonce="zzzzzzzzzzzz", run="research")).id

    def machines(self):
        """Return all machines that there ever were."""
        return [Machine(one.id, one.nonce, one.asked_to_end == math.inf) for one in self.cloud.machines]

    def launches(self):
        """Return how many launches were asked for."""
        return self.cloud.launches

    def keys(self):
        """Return the names of the keys in the account."""
        return [one.name for one in self.cloud.keys]

    def bill(self):
        """Return what all machines have cost."""
        now = self._clock.now()
        minutes = [
            (math.ceil((min(now, one.asked_to_end) - one.launched) / 60), one.cents)
            for one in self.cloud.machines
        ]
        return sum(math.ceil(count * cents / 60) for count, cents in minutes)


class LambdaPlace:
    """Lambda Cloud's stand-in."""

    type, region = "gpu_1x_a10", lambda_client.REGION

    def __init__(self, folder, key, service):
        self._folder, self._key, self.service = folder, key, service

    def renter(self):
        """Return a client with a ledger of its own folder."""
        return lambda_client.renter(self.service.base, self._key, self._folder)

    def fail_launch(self, how, wait_s=0.0):
        """Let the next launch go wrong."""
        if how == "double":
            self.service.state.is_doubled = True
        else:
            self.service.fail("launch", how, **({"wait_s": wait_s} if how == "late" else {}))

    def set_capacity(self, count):
        """Have so many free."""
        self.service.state.kinds[self.type].free = {self.region: count}

    def set_price(self, cents):
        """Have an hour cost so much."""
        self.service.state.kinds[self.type].cents = cents

    def set_key(self, *, is_valid):
        """Take or refuse the client's key."""
        self.service.state.accounts[0].key = self._key if is_valid else "another"

    def lie(self, count):
        """Answer so many ends of the first machine, and end nothing."""
        self.service.alive()[0].lies = count

    def stranger(self):
        """Launch a machine that is not ours; return its id."""
        return self.service.state.stranger(self.service.state.accounts[0], "research").id

    def machines(self):
        """Return all machines that there ever were."""
        alive = {one.id for one in self.service.alive()}
        return [
            Machine(one.id, one.tag("launch:nonce"), one.id in alive)
            for one in self.service.state.machines.values()
        ]

    def launches(self):
        """Return how many launches were asked for."""
        return len(self.service.of("launch"))

    def keys(self):
        """Return the names of the keys in the account."""
        return [one["name"] for one in self.service.state.accounts[0].keys.values()]

    def bill(self):
        """Return what all machines have cost."""
        return self.service.state.cents()


@pytest.fixture(params=["toy", "lambda"])
def place(request, tmp_path, sim_clock, monkeypatch):
    """A provider with an empty account; the toy is known by its line in the registry."""
    if request.param == "lambda":
        return LambdaPlace(
            tmp_path, request.getfixturevalue("key"), request.getfixturevalue("lambda_service")
        )
    monkeypatch.setitem(provider.PROVIDERS, "toy", "testbed.toy_cloud")
    monkeypatch.setitem(toy_cloud.CLOUDS, toy_cloud.API, cloud := toy_cloud.Cloud(sim_clock))
    return ToyPlace(tmp_path, sim_clock, cloud)


def offer(place, renter):
    return next(one for one in renter.provider.offers() if one.type == place.type)


def rent(place, renter, hours=8):
    found = offer(place, renter)
    return renter.rent(found, place.region, RUN, renter.clock.now() + hours * HOUR, SETUP)


def ready(renter, rental):
    return renter.wait_until_ready(rental, 900, lambda *_look: None)


def alive(place):
    return [one.id for one in place.machines() if one.is_alive]


def test_a_rent_from_its_offer_to_its_end(place):
    """The machine carries the nonce, is listed, is ready with an address, and is gone; the figure is no less than the bill."""
    renter = place.renter()
    found = offer(place, renter)
    assert (found.cards, place.region in found.regions) == (1, True)
    rental, lock = rent(place, renter)
    assert [(one.id, one.nonce) for one in place.machines()] == [(rental.instance, rental.nonce)]
    assert [(one.id, one.nonce) for one in renter.provider.instances()] == [(rental.instance, rental.nonce)]
    assert ready(renter, rental).ip
    renter.clock.sleep(HOUR)
    ended = renter.end(rental, "done")
    lock.release()
    assert (ended.state, alive(place), renter.provider.instances()) == (RentalState.ENDED, [], ())
    assert renter.provider.instance(rental.instance) is None
    assert not renter.provider.terminate(rental.instance)  # one that is gone is no error
    assert place.bill() <= ended.cents <= place.bill() + found.cents_per_hour * 6 / 60


def test_an_end_that_was_not_one_is_asked_for_again(place):
    """Until the list has it no more."""
    renter = place.renter()
    rental, _ = rent(place, renter)
    place.lie(2)
    assert renter.end(rental, "done").state is RentalState.ENDED
    assert alive(place) == []


def test_no_capacity_is_a_reason_of_its_own_and_nothing_is_rented(place):
    """The offer says so before, and a launch that comes too late says it too."""
    renter = place.renter()
    found = offer(place, renter)
    place.set_capacity(0)
    assert offer(place, renter).regions == ()
    with pytest.raises(ServiceError) as caught:
        renter.rent(found, place.region, RUN, renter.clock.now() + HOUR, SETUP)
    assert caught.value.reason == ProviderReason.NO_CAPACITY
    (rental,) = renter.ledger.rentals()
    assert (rental.state, rental.is_open, place.machines()) == (RentalState.REFUSED, False, [])


def test_of_two_machines_for_one_launch_one_is_ended(place):
    """Both are in the figure."""
    renter = place.renter()
    place.fail_launch("double")
    rental, _ = rent(place, renter)
    ready(renter, rental)
    assert alive(place) == [rental.instance]
    assert len(place.machines()) == 2
    renter.end(rental, "done")
    reconcile(renter)
    (known,) = renter.ledger.rentals()
    assert not known.is_open
    assert place.bill() <= known.cents_at(renter.clock.now())


@pytest.mark.parametrize(("how", "wait_s"), [("lost", 0), ("late", 100)])
def test_a_machine_whose_answer_was_lost_is_taken_over(place, how, wait_s):
    """It is found in the list by its nonce, and the launch is not made again."""
    renter = place.renter()
    place.fail_launch(how, wait_s)
    rental, _ = rent(place, renter)
    assert place.launches() == 1
    assert alive(place) == [rental.instance]


def test_a_machine_that_comes_after_its_launch_was_given_up_is_ended(place):
    """Here by whoever waits for the second one."""
    renter = place.renter()
    place.fail_launch("late", 330)
    rental, _ = rent(place, renter)
    ready(renter, rental)
    assert (place.launches(), len(place.machines())) == (2, 2)
    assert alive(place) == [rental.instance]
    renter.end(rental, "done")
    assert alive(place) == []
    assert place.bill() <= sum(one.cents_at(renter.clock.now()) for one in renter.ledger.rentals())


def test_a_key_that_is_refused_ends_every_wait_at_once(place):
    """The rental stays open, and a good key ends it."""
    renter = place.renter()
    rental, lock = rent(place, renter)
    place.set_key(is_valid=False)
    for call in (lambda: ready(renter, rental), lambda: renter.end(rental, "done")):
        before = renter.clock.now()
        with pytest.raises(ServiceAuthError) as caught:
            call()
        assert caught.value.reason in provider.REFUSED
        assert renter.clock.now() - before < 60
    assert renter.ledger.rental(rental.nonce).is_open
    lock.release()
    place.set_key(is_valid=True)
    (ended,) = reconcile(place.renter()).ended
    assert (ended.instance, alive(place)) == (rental.instance, [])


def test_a_price_that_rose_since_the_offer_is_not_paid(place):
    """The machine is ended before it is used; the figure goes by the price that is charged."""
    renter = place.renter()
    found = offer(place, renter)
    place.set_price(100 * found.cents_per_hour)
    rental, lock = renter.rent(found, place.region, RUN, renter.clock.now() + HOUR, SETUP)
    with pytest.raises(ServiceError) as caught:
        ready(renter, rental)
    lock.release()
    assert (caught.value.reason, alive(place)) == (RentalReason.PRICE, [])
    assert renter.ledger.rental(rental.nonce).cents >= place.bill()


def test_what_nobody_looks_after_is_ended_and_a_stranger_s_machine_is_not(place):
    """By the ledger's nonces alone."""
    renter = place.renter()
    stranger = place.stranger()
    rental, lock = rent(place, renter)
    ready(renter, rental)
    reconcile(renter)
    assert {*alive(place)} == {stranger, rental.instance}
    lock.release()
    reconcile(renter)
    assert alive(place) == [stranger]


def test_our_key_is_in_the_account_for_as_long_as_something_is_rented(place, tmp_path, monkeypatch):
    """It is added once, and removed after the last end; the account's own stays."""
    monkeypatch.setattr(instance_keys, "usual_folder", lambda: tmp_path / "rentals")
    renter = place.renter()
    name = instance_keys.registered_key(renter.provider).name
    assert instance_keys.registered_key(renter.provider).name == name
    assert place.keys() == ["ours", name]
    with pytest.raises(ServiceError) as caught:
        renter.provider.add_key(name, "ssh-ed25519 AAAA other")
    assert caught.value.reason == ProviderReason.DUPLICATE
    rental, _ = rent(place, renter)
    instance_keys.forget_key(renter)
    assert place.keys() == ["ours", name]
    renter.end(rental, "done")
    instance_keys.forget_key(renter)
    assert place.keys() == ["ours"]


def test_a_provider_is_found_by_its_line(sim_clock, tmp_path, monkeypatch):
    """Nothing else of renting names it: the account opens, knows its time and its page, and rents."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(provider.PROVIDERS, "toy", "testbed.toy_cloud")
    monkeypatch.setitem(toy_cloud.CLOUDS, toy_cloud.API, cloud := toy_cloud.Cloud(sim_clock))
    account = open_account(toy_cloud.ToySettings())
    assert abs(account.clock.now() - sim_clock.now()) < 60
    assert account.page == toy_cloud.INSTANCES_PAGE
    (found,) = account.provider.offers()
    rental, lock = account.rent(found, "here", RUN, account.clock.now() + HOUR, SETUP)
    lock.release()
    account.close()
    assert [one.nonce for one in cloud.machines] == [rental.nonce]
    assert [one.intent.provider for one in RentalLedger(tmp_path / "data/launch/rentals").rentals()] == [
        "toy"
    ]
