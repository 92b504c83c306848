"""What is rented for a launch at Lambda Cloud: what will do, in which order it is tried, its price, and a yes to it.

`agree` of rental_agreement.py takes all steps before the rent, none of which costs anything:

    choice = agree(resolved, plan_for, view, is_sure=…).choice
                                                offers, plan and gate by what is expected, price, question
    choice.candidates()                         what to try, in that order; raises CardBusyError if none is free
    choice.renewed(offers(host))                the same by new offers, after no capacity; never what costs more

A candidate may be rented until `limit_s` after its launch, and has the cards of its `profile`: the plan that counts is made
for that profile from a probe of the machine. Costs are in cents.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from launcher.errors import LaunchError, RefusedError, UsageError
from launcher.planning.offers import Candidate, Expected, Limits, Priced, Wish, candidates, priced, regions_of
from launcher.planning.placement import requested_gpus
from launcher.rental.ledger import Ledger, usual_folder
from launcher.rental.renter import open_account
from launcher.runs import resolve
from launcher.runs.lookup import LAMBDA
from launcher.runs.mirror import Mirror, mirrors
from launcher.runs.view import View
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.lambda_settings import PROPOSED_HOURS, LambdaSettings
from launcher.values.plan import Finding
from launcher.values.profile import Profile
from launcher.values.renting import Offer, dollars, home_s, minutes_text
from launcher.values.states import State

UNTRIED = (
    "launcher's way to Lambda Cloud was never tried against the real service, only against a stand-in for it: "
    "look at its page after the first rent, and please report what differs"
)
SETUP_HOURS = 0.25
"""What is added to the time of a run: to boot, to set the machine up, and to bring the files home."""


class RentalChoice(NamedTuple):
    """What will do for a launch, the first one to try first. There is at least one."""

    host: str
    settings: LambdaSettings
    found: tuple[Priced, ...]

    @property
    def first(self) -> Priced:
        """What is planned for: the first one that is free, else the first one."""
        return next((one for one in self.found if self.regions_of(one)), self.found[0])

    @property
    def largest(self) -> int:
        """The most that this launch may cost, whichever of them is rented."""
        return max(one.largest for one in self.found)

    @property
    def is_any_free(self) -> bool:
        """Whether `candidates` would find any."""
        return any(self.regions_of(one) for one in self.found)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return what to try, in that order, in each region that has one free. Raises CardBusyError if none has."""
        return candidates(self.host, self.found, self.settings.region)

    def profile_of(self, type_name: str) -> Profile:
        """Return the profile of a type's cards. Raises StopIteration for a type that will not do."""
        return next(one.profile for one in self.found if one.offer.type == type_name)

    def renewed(self, offered: Iterable[Offer]) -> RentalChoice:
        """Return the same by new offers: where a type is free now. One that costs more than was agreed to is free nowhere."""
        now = {offer.type: offer for offer in offered}
        return self._replace(found=tuple(one._replace(offer=_renewed(one.offer, now)) for one in self.found))

    def regions_of(self, one: Priced) -> Sequence[str]:
        """Return the regions that have one free, in the order in which they are tried."""
        return regions_of(one.offer, self.settings.region)


def settings_of(host: Host) -> LambdaSettings:
    """Return the settings of a host where machines are rented. Raises UsageError for another kind of host."""
    if host.lambda_cloud is None:
        raise UsageError(
            f'{host.name}: nothing is rented there: its table has no kind = "lambda-cloud"\n'
            "  what Lambda Cloud offers   launch offers"
        )
    return host.lambda_cloud


def check_limited(host: Host) -> None:
    """Raise RefusedError for a table without a limit, before anybody is asked for anything."""
    settings = settings_of(host)
    if settings.max_hours is None and settings.max_cents is None:
        raise RefusedError(
            f"{host.name}: a rented machine costs money until it is ended, so max_hours or max_cost is needed\n"
            f"  in {resolve.file_of(host.name)}   [hosts.{host.name}]   max_hours = {PROPOSED_HOURS}     prices   launch offers"
        )


def offers(host: Host) -> tuple[Offer, ...]:
    """Ask for what a host's account can rent just now: one call, which costs nothing.

    Raises BadFileError, ServiceAuthError without a key, ServiceError.
    """
    with contextlib.closing(open_account(settings_of(host))) as account:
        return account.provider.offers()


class OffersOnce:
    """Asks each account for its offers once, however many hosts are of it; threads may share this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Future[tuple[Offer, ...]]] = {}

    def offers(self, host: Host) -> tuple[Offer, ...]:
        """Return what a host's account can rent. Raises what `offers` raises."""
        api = settings_of(host).api
        with self._lock:
            is_first = api not in self._asked
            answer = self._asked.setdefault(api, Future())
        if is_first:
            try:
                answer.set_result(offers(host))
            except LaunchError as error:
                answer.set_exception(error)
        return answer.result()


def offering_host(name: str | None) -> Host:
    """Return the host of this name, else the project's default, else the first one, where machines are rented.

    Without any it is an account at Lambda Cloud itself, as it would be in a table without further keys. Raises UsageError
    for a host where nothing is rented.
    """
    if name is not None and name != LAMBDA:
        host = resolve.host(name)
        settings_of(host)
        return host
    known = resolve.hosts()
    first = [known[one] for one in (name, resolve.project().host) if one in known]
    for host in [*first, *known.values()]:
        if host.lambda_cloud is not None:
            return host
    return Host(name=LAMBDA, kind="lambda-cloud", lambda_cloud=LambdaSettings())


def choose(
    host: Host,
    profiles: Sequence[Profile],
    gpus: str | None,
    job: Job,
    offered: Iterable[Offer],
    earlier: Callable[[str, Profile], Expected | None] | None = None,
) -> RentalChoice:
    """Return what will do for a job: for one of the named profiles, for the host's table, and for `--gpus`.

    `earlier` tells how long a job of a name took on a card; by default the runs of this client do. Raises UnknownNameError,
    UsageError, RefusedError.
    """
    settings = settings_of(host)
    wish = Wish(
        profiles, tuple(resolve.profiles().values()), settings.type, settings.region, _number_of(gpus, host)
    )
    limits = Limits(max_hours=settings.max_hours, max_cents=settings.max_cents)
    known = earlier or earlier_run

    def expected(profile: Profile) -> Expected | None:
        return known(job.name, profile) or _by_its_limit(job)

    return RentalChoice(host.name, settings, priced(host.name, offered, limits, wish, expected))


def price_words(choice: RentalChoice) -> str:
    """Return in one line what is rented, its price an hour, and what it costs: expected and at most."""
    first = choice.first
    expected = (
        f"expected {dollars(first.expected)} ({first.why_expected})"
        if first.expected is not None
        else "how long it takes is not known"
    )
    most = f"at most {dollars(first.largest)} in {hours_text(first.limit_s)}"
    words = f"{_where(choice, first)}: {expected}, {most}"
    others = [one for one in choice.found if one.offer.type != first.offer.type]
    if others:
        words += f"; else {', '.join(f'{one.offer.type} at {one.offer.price}' for one in others)}"
        if choice.largest > first.largest:
            words += f", at most {dollars(choice.largest)}"
    return words


def offer_words(choice: RentalChoice, one: Priced) -> str:
    """Return in a few words what would be rented for any job, and what it costs at most."""
    return f"expected of {_where(choice, one)}, at most {dollars(one.largest)} in {hours_text(one.limit_s)}"


def _where(choice: RentalChoice, one: Priced) -> str:
    regions = choice.regions_of(one)
    where = f" in {regions[0]}" if regions else ", none free just now,"
    return f"{one.offer.type}{where} at {one.offer.price}"


def price_finding(choice: RentalChoice) -> Finding:
    """Return the price as a note of the gate."""
    return Finding(level="note", code="price", message=f"{choice.host}: {price_words(choice)}")


def home_finding(choice: RentalChoice) -> Finding:
    """Return as a note of the gate when a run on what is rented is ended at the latest, and why."""
    minutes = minutes_text(home_s(choice.first.limit_s) / 60)
    message = (
        f"{choice.host}: the last {minutes} before the limit are for bringing files home: a run that still goes on is asked to save and stop then;"
        " what is not here at the limit is lost with the machine, and named"
    )
    return Finding(level="note", code="home", message=message)


def question(choice: RentalChoice) -> Finding | None:
    """Return the finding that a launch may cost more than is agreed to without a question; None if it may not."""
    settings = choice.settings
    if choice.largest <= settings.confirm_above * 100:
        return None
    first = choice.first
    message = (
        f"{choice.host}: this may cost {dollars(choice.largest)}, which is more than confirm_above = {settings.confirm_above:g} "
        f"({first.offer.type} at {first.offer.price}, {hours_text(first.limit_s)} at most)"
    )
    mend = "launch --yes … agrees, as y does at a terminal; a lower max_hours or max_cost limits it"
    return Finding(level="refuse", code="costs-much", message=message, mend=mend)


def has_rented() -> bool:
    """Whether this client has rented before."""
    return bool(Ledger(usual_folder()).rentals())


def say_price(choice: RentalChoice, view: View) -> None:
    """Show the price, and at the first rent of this client that nothing was tried there."""
    if not has_rented():
        view.note(f"{choice.host}: {UNTRIED}")
    view.finding(home_finding(choice))
    view.finding(price_finding(choice))


def confirm(choice: RentalChoice, view: View, *, is_sure: bool) -> None:
    """Ask whether the largest cost is agreed to, if it is above the table's `confirm_above`.

    Raises RefusedError for no, and without a terminal: nothing was rented. Of an interrupt that is said too.
    """
    asked = None if is_sure else question(choice)
    if asked is None:
        return
    try:
        answer = view.agrees(asked.message)
    except BaseException:  # an interrupt, or the end of the input
        view.note("nothing was rented")
        raise
    if answer is None:
        raise RefusedError(f"nothing was rented: {asked.message}\n  {asked.mend}")
    if not answer:
        raise RefusedError("nothing was rented, as you answered\n  a lower max_hours or max_cost limits it")


def earlier_run(job: str, profile: Profile) -> Expected | None:
    """Return how long this client's last run of a job on a card took; None if none succeeded there."""
    for mirror in reversed(mirrors()):
        if (seconds := _seconds(mirror, job, profile)) is not None:
            return Expected(
                seconds / 3600 + SETUP_HOURS,
                f"as run {mirror.short} took, and {SETUP_HOURS * 60:.0f} min around it",
            )
    return None


def hours_text(seconds: float) -> str:
    """Return a length of time as a price is for it, e.g. `8 h`, `45 min` or `5 h 1 min`."""
    minutes = round(seconds / 60)
    if minutes < 120 and minutes % 60:
        return f"{minutes} min"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


def _renewed(offer: Offer, offered: Mapping[str, Offer]) -> Offer:
    now = offered.get(offer.type)
    if now is None or now.cents_per_hour > offer.cents_per_hour:
        return offer.model_copy(update={"regions": ()})
    return now


def _seconds(mirror: Mirror, job: str, profile: Profile) -> float | None:
    plan = mirror.plan()
    if (plan.job, plan.card) != (job, profile.title) or plan.rehearsed:
        return None
    state, began = mirror.state(), mirror.began()
    if state is None or state.state != State.SUCCEEDED or state.time is None or began is None:
        return None
    return max(0.0, state.time - began)


def _by_its_limit(job: Job) -> Expected | None:
    limit = job.time_limit_minutes
    return (
        None if limit is None else Expected(limit / 60 + SETUP_HOURS, f"by its time limit of {limit:g} min")
    )


def _number_of(gpus: str | None, host: Host) -> int | None:
    """Return how many cards `--gpus` asks for. Raises UsageError for the ids of cards, which nobody has yet."""
    if gpus is None:
        return None
    count, ids = requested_gpus(gpus, 1)
    if ids:
        raise UsageError(
            f"--gpus {gpus}: {host.name} rents its cards, and they have no ids before\n  how many   --gpus {count}"
        )
    return count
