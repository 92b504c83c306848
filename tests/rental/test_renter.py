"""Renting at the stand-in for Lambda Cloud: whatever is lost, late, doubled or lied about, what is ours is known and ended."""

import math

import pytest
from testbed import lambda_client
from testbed.lambda_client import REGION, RUN, SETUP, is_anything_billed, offer
from testbed.tables import mostly_long

from launcher.errors import ServiceError, UnknownOutcomeError
from launcher.rental.provider import ProviderReason
from launcher.rental.reconcile import reconcile, survey
from launcher.rental.renting import TAGS, LaunchOptions, RentalReason, RentalState, run_cents
from launcher.rental.verdict import RentalVerdict

HOURS = 3600.0


def rent(renter, hours=8, setup=SETUP):
    return renter.rent(offer(), REGION, RUN, renter.clock.now() + hours * HOURS, setup)


def ready(renter, rental, limit_s=900):
    looks = []
    instance = renter.wait_until_ready(rental, limit_s, lambda *look: looks.append(look))
    return instance, looks


def test_rent_wait_and_end(renter, lambda_service):
    """Its name and tags tell run, client and deadline; the ledger's cost is no less than the bill and little more."""
    rental, lock = rent(renter)
    (made,) = lambda_service.alive()
    assert made.body["name"] == f"launch-{RUN}-{rental.nonce}"
    assert [made.tag(tag) for tag in TAGS] == [RUN, rental.nonce, "laptop", f"{rental.intent.deadline:.0f}"]
    instance, looks = ready(renter, rental)
    assert instance.ip
    assert len(looks) > 5
    renter.clock.sleep(HOURS)
    ended = renter.end(rental, "done")
    lock.release()
    assert lambda_service.alive() == []
    assert (ended.state, ended.why) == (RentalState.ENDED, "done")
    assert lambda_service.state.cents() <= ended.cents <= lambda_service.state.cents() + 129 * 6 / 60
    assert lambda_service.state.violations == []
    assert not is_anything_billed(reconcile(renter))


def test_the_user_data_is_in_no_file(renter, lambda_service, tmp_path):
    """It holds the private half of a host key."""
    setup = LaunchOptions(ssh_key="ours", user_data="#cloud-config\n# host-key-of-mine\n")
    rental, _ = rent(renter, setup=setup)
    assert lambda_service.alive()[0].body["user_data"] == setup.user_data
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and b"host-key-of-mine" in path.read_bytes()
    ]
    assert "host-key-of-mine" not in repr((setup, rental))


def test_the_intent_is_on_disk_before_the_launch_is_sent(renter, lambda_service):
    """At that moment the ledger has it, held by this process."""
    seen = []
    lambda_service.before = lambda line: (
        line["call"] == "launch"
        and seen.extend(
            (rental.state, renter.ledger.is_held(rental.nonce)) for rental in renter.ledger.rentals()
        )
    )
    rent(renter)
    assert seen == [(RentalState.INTENT, True)]


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "lost"},
        {"kind": "accepted", "status": 502},
        {"kind": "accepted", "status": 500, "code": "global/internal-error"},
        {"kind": "late", "wait_s": 100},
        {"kind": "late", "wait_s": 299},
    ],
    ids=str,
)
def test_an_instance_whose_answer_was_lost_is_taken_over(renter, lambda_service, fault):
    """It is looked for in the list, for up to five minutes; the launch is not made again."""
    lambda_service.fail("launch", **fault)
    rental, _ = rent(renter)
    assert len(lambda_service.of("launch")) == 1
    assert [one.id for one in lambda_service.alive()] == [rental.instance]
    assert ready(renter, rental)[0].id == rental.instance


@pytest.mark.parametrize("fault", [{"kind": "cut"}, {"kind": "status", "status": 503}], ids=str)
def test_a_launch_that_made_nothing_in_five_minutes_is_made_again(renter, lambda_service, fault):
    """With another nonce. The first one stays known."""
    lambda_service.fail("launch", **fault)
    began = renter.clock.now()
    rental, _ = rent(renter)
    assert 300 <= renter.clock.now() - began < 400
    states = [one.state for one in renter.ledger.rentals()]
    assert states == [RentalState.UNSEEN, RentalState.LAUNCHED]
    assert len({one.nonce for one in renter.ledger.rentals()}) == 2
    assert [one.id for one in lambda_service.alive()] == [rental.instance]


def test_an_instance_that_comes_after_its_launch_was_given_up_is_ended_by_the_next_look(
    renter, lambda_service
):
    """Here by the one that waits for the second."""
    lambda_service.fail("launch", "late", wait_s=330)
    rental, _ = rent(renter)
    ready(renter, rental)
    assert [one.id for one in lambda_service.alive()] == [rental.instance]
    assert len(lambda_service.state.machines) == 2
    first = renter.ledger.rentals()[0]
    assert [extra.id for extra in first.extras] == [*lambda_service.terminated()]
    reconcile(renter)
    assert renter.ledger.rental(first.nonce).cents_at(renter.clock.now()) > 0


def test_launches_without_an_answer_are_not_made_for_ever(renter, lambda_service):
    """Three, then the error says where to look."""
    lambda_service.fail("launch", "cut", times=9)
    with pytest.raises(UnknownOutcomeError, match="launch reconcile"):
        rent(renter)
    assert len(lambda_service.of("launch")) == 3
    assert lambda_service.alive() == []
    assert not [one for one in renter.ledger.rentals() if one.is_open or renter.ledger.is_held(one.nonce)]


def test_without_a_list_nothing_is_settled(renter, lambda_service):
    """A launch is not made again because the list cannot be read; reconcile goes on with it."""
    lambda_service.fail("launch", "lost")
    lambda_service.fail("instances", "status", status=503, times=1000)
    with pytest.raises(UnknownOutcomeError, match="may have been accepted"):
        rent(renter)
    assert len(lambda_service.of("launch")) == 1
    lambda_service._faults.clear()
    assert not is_anything_billed(reconcile(renter))
    assert lambda_service.alive() == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_of_two_instances_for_one_launch_one_is_ended(renter, lambda_service, is_lost):
    """Its cost is in the record too."""
    lambda_service.state.is_doubled = True
    if is_lost:
        lambda_service.fail("launch", "lost")
    rental, _ = rent(renter)
    ready(renter, rental)
    assert [one.id for one in lambda_service.alive()] == [rental.instance]
    assert len(lambda_service.state.machines) == 2
    renter.end(rental, "done")
    reconcile(renter)
    (known,) = renter.ledger.rentals()
    assert lambda_service.state.cents() <= known.cents_at(renter.clock.now())
    assert [extra.id for extra in known.extras] == [
        one for one in lambda_service.state.machines if one != rental.instance
    ]
    assert known.extras[0].cents > 0


@pytest.mark.parametrize("fault", ["doubled", "late"])
def test_what_a_second_instance_has_cost_is_settled_once_it_has_gone(renter, lambda_service, fault):
    """While the first one boots: it does not grow with the hours that the run takes, and no reconcile is needed."""
    lambda_service.state.is_doubled = fault == "doubled"
    if fault == "late":
        lambda_service.fail("launch", "late", wait_s=330)  # the launch is made again
    rental, _ = rent(renter)
    ready(renter, rental)
    renter.clock.sleep(5 * HOURS)
    renter.end(rental, "done")
    known, now = renter.ledger.rentals(), renter.clock.now()
    assert not [one for one in known if one.is_open]
    (extra,) = [extra for one in known for extra in one.extras]
    (other,) = [one for one in lambda_service.state.machines.values() if one.id == extra.id]
    assert other.cents(now) <= extra.cents <= 129 * 10 / 60
    assert run_cents(known, RUN, now) == renter.ledger.rental(rental.nonce).cents + extra.cents


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "gpu_1x_h100_pcie"}, ProviderReason.NO_CAPACITY),
        ({"type": "gpu_7x_x"}, ProviderReason.NOT_FOUND),
    ],
    ids=str,
)
def test_a_refused_launch_is_over(renter, lambda_service, change, reason):
    """So the caller may try another type or region at once."""
    with pytest.raises(ServiceError) as caught:
        renter.rent(offer().model_copy(update=change), REGION, RUN, renter.clock.now() + HOURS, SETUP)
    assert caught.value.reason == reason
    (rental,) = renter.ledger.rentals()
    assert (rental.state, rental.why, rental.is_open) == (RentalState.REFUSED, reason, False)
    assert not renter.ledger.is_held(rental.nonce)


@mostly_long("status", ["booting", "unhealthy", "hibernating", "", "ACTIVE"], ci=(0, 1))
def test_an_instance_that_is_not_ready_in_time_is_ended(renter, lambda_service, status):
    """One that boots for ever, or has a status that nobody has seen before, is no success; the cost is said."""
    rental, _ = rent(renter)
    lambda_service.alive()[0].status = status
    began = renter.clock.now()
    with pytest.raises(
        ServiceError, match=f"'{status}' after 9.. s; it was ended, and cost at most"
    ) as caught:
        ready(renter, rental)
    assert caught.value.reason == RentalReason.BOOT_TIMEOUT
    assert 900 <= renter.clock.now() - began < 1000
    assert "the same command tries again" in str(caught.value)
    assert lambda_service.alive() == []
    assert renter.ledger.rental(rental.nonce).state is RentalState.ENDED


def test_an_active_instance_without_an_address_is_not_ready(renter, lambda_service):
    """It may come late."""
    rental, _ = rent(renter)
    lambda_service.alive()[0].ip_from = renter.clock.now() + 500
    began = renter.clock.now()
    assert ready(renter, rental)[0].ip
    assert renter.clock.now() - began >= 500


def test_boot_does_not_outlast_the_deadline(renter, lambda_service):
    """Whatever its own limit is."""
    lambda_service.state.habits.boot_s = math.inf
    rental, _ = rent(renter, hours=0.1)
    with pytest.raises(ServiceError):
        ready(renter, rental)
    assert renter.clock.now() < rental.intent.deadline + 60
    assert lambda_service.alive() == []


def test_an_instance_that_is_taken_away_while_it_boots(renter, lambda_service):
    """Preempted, or gone from the list: its reason and its cost."""
    rental, _ = rent(renter)
    lambda_service.alive()[0].status = "preempted"
    with pytest.raises(ServiceError, match="cost at most") as caught:
        ready(renter, rental)
    assert caught.value.reason == RentalReason.PREEMPTED
    assert lambda_service.alive() == []
    rental, _ = rent(renter)
    lambda_service.alive()[0].gone = renter.clock.now() + 60
    with pytest.raises(ServiceError, match="cost at most") as caught:
        ready(renter, rental)
    assert caught.value.reason == RentalReason.GONE


def test_an_end_that_was_not_one_is_asked_for_again(renter, lambda_service):
    """The list is believed, not the answer."""
    rental, _ = rent(renter)
    ready(renter, rental)
    lambda_service.alive()[0].lies = 2
    assert renter.end(rental, "done").state is RentalState.ENDED
    assert lambda_service.alive() == []
    assert len(lambda_service.of("terminate")) == 3


@pytest.mark.parametrize(
    "fault", [{"kind": "lost"}, {"kind": "status", "status": 503}, {"kind": "cut"}], ids=str
)
def test_an_end_without_an_answer_is_asked_for_again(renter, lambda_service, fault):
    """Until the instance has gone from the list."""
    rental, _ = rent(renter)
    ready(renter, rental)
    lambda_service.fail("terminate", **fault, times=3)
    lambda_service.fail("instances", "status", status=502, times=2)
    renter.end(rental, "done")
    assert lambda_service.alive() == []


def test_an_end_that_never_comes_is_an_error_with_its_cost(renter, lambda_service):
    """And the next command; the ledger keeps it open, and reconcile ends it once that is possible."""
    rental, lock = rent(renter)
    ready(renter, rental)
    lambda_service.alive()[0].lies = 10_000
    with pytest.raises(
        ServiceError, match=r"still listed after its termination: \$.* so far\n  try again   launch reconcile"
    ) as caught:
        renter.end(rental, "done")
    assert caught.value.reason == RentalReason.STILL_BILLED
    lock.release()
    assert reconcile(renter).is_anything_left
    lambda_service.alive()[0].lies = 0
    assert not is_anything_billed(reconcile(renter))


def test_a_key_that_is_no_longer_valid_stops_a_wait_at_once(renter, lambda_service):
    """It is no passing trouble; the rental stays open in the ledger."""
    rental, _ = rent(renter)
    lambda_service.fail("instances", "status", status=401, code="global/invalid-api-key")
    with pytest.raises(ServiceError) as caught:
        ready(renter, rental)
    assert caught.value.reason == ProviderReason.UNAUTHORIZED
    assert renter.ledger.rental(rental.nonce).is_open


def test_what_another_process_ended_is_not_ready(renter, lambda_service):
    """Its state in the ledger says so."""
    rental, lock = rent(renter)
    lock.release()
    reconcile(renter)
    with pytest.raises(ServiceError):
        ready(renter, rental)
    assert lambda_service.alive() == []


def test_strangers_are_never_touched(renter, lambda_service):
    """Whatever their name or tags; another client's of launcher are named as such, and only ended if the user says so."""
    (account,) = lambda_service.state.accounts
    named = {"launch:run": RUN, "launch:nonce": "abcdefghijkl"}
    strangers = [
        lambda_service.state.stranger(account, "research"),
        lambda_service.state.stranger(account, f"launch-{RUN}-abcdefghijkl", named),
        lambda_service.state.stranger(account, "launch-"),
        lambda_service.state.stranger(account, ""),
    ]
    rental, lock = rent(renter)
    lock.release()
    done = reconcile(renter)
    assert lambda_service.terminated() == {rental.instance}
    assert [one.verdict for one in done.judged] == [RentalVerdict.STRANGER] * 4
    assert [one.why for one in done.judged].count("another client's") == 1
    assert not is_anything_billed(done)
    reconcile(renter, adopted=[strangers[1].id])
    assert lambda_service.terminated() == {rental.instance, strangers[1].id}
    assert {one.id for one in lambda_service.alive()} == {strangers[0].id, strangers[2].id, strangers[3].id}


def test_a_survey_changes_nothing(renter, lambda_service, tmp_path):
    """Neither the ledger nor the account."""
    _, lock = rent(renter)
    lock.release()
    before = {path: path.read_bytes() for path in (tmp_path / "rentals").glob("*.jsonl")}
    assert [one.verdict for one in survey(renter)] == [RentalVerdict.ORPHAN]
    assert before == {path: path.read_bytes() for path in (tmp_path / "rentals").glob("*.jsonl")}
    assert lambda_service.of("terminate") == []


def test_what_is_held_or_wanted_stays_until_its_time_is_up(renter, lambda_service):
    """A living process, or a run that needs it; after the deadline it is due."""
    rental, lock = rent(renter)
    ready(renter, rental)
    assert [one.verdict for one in reconcile(renter).judged] == [RentalVerdict.WANTED]
    lock.release()
    done = reconcile(renter, wanted=[RUN])
    assert is_anything_billed(done)
    assert not done.is_anything_left
    renter.clock.sleep(8 * HOURS)
    done = reconcile(renter, wanted=[RUN])
    assert [ending.why for ending in done.ended] == ["its time is up"]
    assert not is_anything_billed(done)
    assert lambda_service.alive() == []


def test_a_quick_look_leaves_a_fresh_launch_unsettled_and_a_later_one_settles_it(renter, lambda_service):
    """It counts as billed until then."""
    lambda_service.fail("launch", "late", wait_s=200)
    lambda_service.fail("instances", "status", status=401, code="global/invalid-api-key")
    with pytest.raises(ServiceError):
        rent(renter)  # it gave up in the middle of settling, as if it had been killed
    quick = reconcile(renter, waits=False)
    assert [one.verdict for one in quick.judged] == [RentalVerdict.UNSETTLED]
    assert is_anything_billed(quick)
    heard = []
    quick = reconcile(renter, report=heard.append)
    (ending,) = quick.ended
    assert "a launch without an answer, for 5 more minutes at most" in heard[0]
    assert heard[-1].startswith(f"ending {ending.instance}, until")
    assert ending.cents == renter.ledger.rentals()[0].cents > 0
    assert not is_anything_billed(quick)
    assert lambda_service.alive() == []


def test_another_key_of_this_user_does_not_settle_what_the_first_has_rented(renter, lambda_service, tmp_path):
    """What its list does not show may still be paid for in the other account."""
    rental, lock = rent(renter)
    lock.release()
    other = lambda_service.account("bob")
    theirs = lambda_client.renter(lambda_service.base, other.key, tmp_path)
    done = reconcile(theirs)
    assert [one.verdict for one in done.judged] == [RentalVerdict.ELSEWHERE]
    assert is_anything_billed(done)
    assert [one.id for one in lambda_service.alive()] == [rental.instance]
    assert not is_anything_billed(reconcile(renter))


def test_a_record_that_cannot_be_read_stops_no_reconcile(renter, lambda_service, tmp_path):
    """The others' instances are ended; the exit tells that something may still be billed."""
    _, lock = rent(renter)
    lock.release()
    unread = tmp_path / "rentals" / "zzz.jsonl"
    unread.write_text("{}\n")
    done = reconcile(renter)
    assert lambda_service.alive() == []
    assert done.unreadable == (unread,)
    assert done.is_anything_left


@pytest.mark.parametrize("minutes", [1, 14.9, 15, 47.3, 61, 333.3])
def test_a_figure_and_the_bill_differ_by_a_minute_at_most(renter, lambda_service, minutes):
    """Of a machine that is there at once, so that both begin at the launch; never below the bill, however its time is cut."""
    habits = lambda_service.state.habits
    habits.boot_s = habits.ip_s = habits.end_s = 0.0
    rental, lock = rent(renter)
    ready(renter, rental)
    renter.clock.sleep(minutes * 60)
    so_far = rental.cents_at(renter.clock.now())
    assert lambda_service.state.cents() <= so_far <= lambda_service.state.cents() + math.ceil(129 / 60)
    ended = renter.end(rental, "done")
    lock.release()
    bill = lambda_service.state.cents()
    assert bill <= ended.cents <= bill + math.ceil(129 / 60)


def test_two_commands_with_a_new_key_claim_nothing_of_what_the_other_has_just_ended(
    renter, lambda_service, tmp_path
):
    """The second one's list has the machine no more, and the ledger has its end a moment later: it is no other account's."""
    rental, lock = rent(renter)
    ready(renter, rental)
    lock.release()
    (account,) = lambda_service.state.accounts
    account.key = "secret_alice_0123456789abcdef0123"
    second = lambda_client.renter(lambda_service.base, account.key, tmp_path)
    assert second.provider.account != rental.intent.account
    book, now = renter.ledger, renter.clock.now()
    book.step(rental.nonce, RentalState.ENDING, now, why="named by you")
    second.provider.terminate(rental.instance)
    renter.clock.sleep(60)
    sleep = second.clock.sleep

    def ends(seconds):
        book.step(rental.nonce, RentalState.ENDED, now + 60, cents=10)
        sleep(seconds)

    second.clock.sleep = ends
    done = reconcile(second)
    assert [one.verdict for one in done.judged] == []
    assert not done.is_anything_left
