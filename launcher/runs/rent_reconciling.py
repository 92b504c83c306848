"""Reconcile what is rented: runs that are over come home and their machines end, orphans end, and what goes on is looked after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from launcher.errors import (
    LaunchError,
    NoRunError,
    RefusedError,
    ServiceError,
    UnknownNameError,
    UnreachableError,
    UsageError,
)
from launcher.rental.instance_keys import forget_key
from launcher.rental.provider import module_of
from launcher.rental.reconcile import Reconciled, reconcile, survey
from launcher.rental.renter import Ending, Renter, open_account
from launcher.rental.service_clock import ServiceClock
from launcher.rental.verdict import GRACE_S, has_any_of, owner_of
from launcher.runs import resolve, tenancies
from launcher.runs.adopting import bring_home_first
from launcher.runs.mirror import Mirror
from launcher.runs.rent_ending import end_at_limit, end_rent, end_without_run, is_kept_without_run, is_over
from launcher.runs.run_desk import open_desk
from launcher.runs.run_id import find
from launcher.runs.summaries import known_summary
from launcher.runs.tenancies import RentedMachine
from launcher.runs.tenant import Tenant, take_over
from launcher.runs.view import Stage, View
from launcher.values.clock import look_again_after
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.renting import Rental, RentalState, dollars

WAKE_S, LOOK_S = 20.0, 0.5
"""How long a process that looks after a machine may take to notice that its limit has passed, and how often that is looked for."""


class Report(NamedTuple):
    """What became of the rentals of one account, and which instances it still has."""

    account: str
    done: Reconciled
    listed: frozenset[str]


class Named(NamedTuple):
    """Instances that the user wants ended, whoever's they are, and from which time on; None for now.

    With `force` also if what their runs made is lost with them. `is_sure`: nobody is asked about those of other computers.
    """

    instances: Sequence[str] = ()
    after: float | None = None
    force: bool = False
    is_sure: bool = False


def reconcile_all(named: Named, view: View, *, dry_run: bool) -> list[Report]:
    """Reconcile every account that this user has rented at, or that a table here names.

    With `dry_run` nothing is changed. Raises RunError if what a named machine has does not come home, RefusedError if the end of
    one that was not rented here is not agreed to. One that fails keeps no other. Raises BadFileError or ServiceAuthError
    without a key, and ServiceError.
    """
    reports, failed = [], []
    for settings in _accounts(named.instances):
        try:
            reports.append(_reconcile(settings, named, view, dry_run=dry_run))
        except ServiceError as error:
            failed.append(error)
    for other in failed[1:]:
        view.note(str(other))
    if failed:
        raise failed[0]
    return reports


def end_abandoned(settings: LambdaSettings, runs: Collection[str], view: View) -> None:
    """End the machines that launches of some runs have left behind: their client was killed before anything could begin there.

    This waits until they are gone, and not for one that may still appear. Raises BadFileError or ServiceAuthError without a
    key, ServiceError, and RefusedError if the ledger cannot be written.
    """
    left = tenancies.abandoned(runs)
    if not left:
        return
    with contextlib.closing(open_account(settings)) as account, _asking(view, settings) as stage:
        done = reconcile(account, only=left, waits=False, report=stage.progress)
        for ending in done.ended:
            cost = "" if ending.cents is None else f"; it cost at most {dollars(ending.cents)}"
            view.note(f"{ending.instance}: {ending.why}, so it was ended{cost}")
        for ending in done.left:
            view.note(_still_listed(account, ending))


def dismiss(word: str) -> Rental:
    """Have no command speak any more of the open rental for a run, which was made with a key that is lost.

    Nothing is claimed about its machine. Raises UsageError if the key that is here could end it, UnknownNameError if nothing
    open is for such a run, and ServiceError.
    """
    book, rented = tenancies.ledger(), [*tenancies.rented()]
    open_ones = {rental.intent.run: rental for rental in book.rentals() if rental.is_open}
    open_ones |= {one.tenancy.run: one.rental for one in rented if one.rental.is_open}
    if not open_ones:
        raise UnknownNameError(
            "nothing is rented, as far as is known here\n  what the account has   launch reconcile"
        )
    found = open_ones[find(word, [*open_ones])]
    tenancy = next((one.tenancy for one in rented if one.rental.nonce == found.nonce), None)
    apis = [tenancy.settings.api] if tenancy is not None else tenancies.services()
    if module_of(found.intent.provider).person_key() is not None and any(
        _is_in_reach(found, api) for api in apis
    ):
        raise UsageError(
            f"{found.intent.run}: the API key that is here can end its machine, so it is not dismissed\n  end it   launch reconcile"
        )
    return book.step(found.nonce, RentalState.DISMISSED, ServiceClock().now(), why="dismissed by you")


def _is_in_reach(rental: Rental, api: str) -> bool:
    with contextlib.closing(open_account(LambdaSettings(api=api))) as account:
        provider = account.provider
        return rental.intent.account == provider.account or has_any_of(provider.instances(), rental)


def _accounts(adopted: Sequence[str]) -> list[LambdaSettings]:
    """Return settings for each service that may have something of ours."""
    named = [host.lambda_cloud.api for host in resolve.hosts().values() if host.lambda_cloud is not None]
    found = dict.fromkeys([*tenancies.services(), *named])
    if not found and (adopted or module_of(LambdaSettings.provider).person_key() is not None):
        return [LambdaSettings()]
    return [LambdaSettings(api=api) for api in found]


def _reconcile(settings: LambdaSettings, named: Named, view: View, *, dry_run: bool) -> Report:
    renter = open_account(settings)
    try:
        with _asking(view, settings):
            renter.learn_time()
            is_early = named.after is not None and renter.clock.now() < named.after
            adopted = () if is_early else named.instances
            found = _at(renter, [_with_its_boot(renter, one) for one in tenancies.rented()])
        if not dry_run and named.after is None and not named.is_sure:
            _agree_to_end(renter, adopted, view)
        unsure = _unsure_of(renter, view)
        if dry_run:
            wanted = {one.rental.intent.run for one in found if _would_go_on(one, view)}
            with _asking(view, settings):
                judged = survey(renter, wanted | unsure, adopted)
            return _report(renter, Reconciled((), judged, renter.ledger.unreadable()))
        for one in found:
            if one.rental.instance in adopted and not named.force:
                bring_home_first(one, view, is_due=named.after is not None)
        wanted = {
            one.rental.intent.run
            for one in found
            if one.rental.instance not in adopted and _goes_on(one, view)
        }
        bringing = _bringing(found, renter, view)
        with _asking(view, settings) as stage:
            done = reconcile(renter, wanted | unsure, adopted, bringing, report=stage.progress)
        for ending in done.left:
            view.note(_still_listed(renter, ending))
        if done.ended:
            forget_key(renter)
        return _report(renter, done._replace(ended=(*_ended_of(found, renter, done.ended), *done.ended)))
    finally:
        renter.close()


def _agree_to_end(renter: Renter, adopted: Sequence[str], view: View) -> None:
    """Ask whether named instances that were not rented here are to be ended: nothing of theirs can come home.

    Raises RefusedError for no, and without a terminal.
    """
    rentals = renter.ledger.rentals()
    known = {rental.instance for rental in rentals}
    if known.issuperset(adopted):
        return
    found = [one for one in renter.provider.instances() if one.id in adopted and one.id not in known]
    others = [one for one in found if owner_of(one, rentals) is None]
    if not others:
        return
    lines = [
        f"{one.id}: {', '.join(filter(None, (one.type, one.region, one.word, one.name)))}" for one in others
    ]
    words = "\n".join([*lines, "not rented on this machine: what is only there is lost with it"])
    answer = view.agrees(words)
    if answer is None:
        ids = " ".join(f"--adopt {one.id}" for one in others)
        raise RefusedError(f"nothing was ended: {words}\n  if that is meant   launch reconcile {ids} --yes")
    if not answer:
        raise RefusedError("nothing was ended, as you answered\n  what there is   launch reconcile --dry-run")


@contextlib.contextmanager
def _asking(view: View, settings: LambdaSettings) -> Iterator[Stage]:
    """Show that an account is asked, for as long as that lasts."""
    with view.stage(f"asking {urlsplit(settings.api).hostname}") as stage:
        stage.text = None
        yield stage


def _bringing(found: Sequence[RentedMachine], renter: Renter, view: View) -> set[str]:
    """Return the nonces of machines beyond their limit whose files come home now: the process that does it slept, as a laptop does.

    One that is stopped loses the machine to this command. One that does nothing about it for a while hangs, and what it has not brought is lost with the machine, which is said.
    """
    until, bringing = time.monotonic() + WAKE_S, set()
    for one in found:
        rental, nonce = one.rental, one.rental.nonce
        while renter.clock.now() >= rental.intent.deadline + GRACE_S and renter.ledger.is_locked(nonce):
            if renter.ledger.is_stopped(nonce):
                _goes_on(one, view)
                break
            if tenancies.is_bringing(nonce, renter.clock.now()):
                bringing.add(nonce)
                break
            if time.monotonic() >= until:
                words = "what it had not brought home by then may be lost"
                tenancies.note_lost(nonce, words)
                view.note(
                    f"{rental.intent.run}: the process here that looks after its machine does nothing, and its time is up; {words}"
                )
                break
            look_again_after(LOOK_S)
    return bringing


def _ended_of(found: Sequence[RentedMachine], renter: Renter, done: Collection[Ending]) -> Iterator[Ending]:
    """Yield the machines that were ended when their files had come home, and not by the look at the list after that."""
    for one in found:
        rental = renter.known(one.rental)
        is_told = any(rental.instance == ending.instance for ending in done)
        if rental.instance is not None and not rental.is_open and not is_told:
            yield Ending(rental.instance, rental.why or "its run has ended", rental)


def _still_listed(renter: Renter, ending: Ending) -> str:
    whose = "" if ending.rental is None else f", {renter.cost(ending.rental)} so far"
    return f"{ending.instance} was to be ended, and is still listed{whose}: try again   launch reconcile     or end it at   {renter.page}"


def _report(renter: Renter, done: Reconciled) -> Report:
    billed = (one.instance.id for one in done.judged if one.instance is not None)
    return Report(renter.provider.account, done, frozenset(billed))


def _with_its_boot(renter: Renter, found: RentedMachine) -> RentedMachine:
    """Return a machine, and put back the record that it has booted, if that was cut off: without it, it would end with all that its run made."""
    rental = found.rental
    has_booted = rental.state in (RentalState.INTENT, RentalState.LAUNCHED) and not found.is_held
    if not has_booted or tenancies.mirror_of(found.tenancy) is None:
        return found
    instance = renter.find(rental)
    if instance is None or not instance.is_ready:
        return found
    try:
        renter.ledger.step(rental.nonce, RentalState.LAUNCHED, rental.intent.time, instance=instance.id)
        return found._replace(rental=renter.ledger.step(rental.nonce, RentalState.READY, renter.clock.now()))
    except OSError as error:
        raise RefusedError(renter.ledger.words(error)) from error


def _at(account: Renter, found: Sequence[RentedMachine]) -> list[RentedMachine]:
    """Return the machines of ours that are ready at an account, so that a run may be there.

    Those that were rented with another key are, if the account lists them: a key may be replaced.
    """
    provider = account.provider
    ready = [one for one in found if one.rental.state is RentalState.READY]
    own = [one for one in ready if one.rental.intent.account == provider.account]
    if len(own) == len(ready):
        return own
    listed = provider.instances()
    return [one for one in ready if one in own or has_any_of(listed, one.rental)]


def _unsure_of(account: Renter, view: View) -> set[str]:
    """Return the runs of which nobody knows here how they stand: their machines are left until their limit."""
    ledger, runs = account.ledger, set()
    for rental in ledger.rentals():
        if rental.state is RentalState.READY and (why := tenancies.damage(ledger, rental)):
            view.note(f"{rental.intent.run}: {why}; its machine is left until its limit")
            runs.add(rental.intent.run)
    return runs


def _would_go_on(found: RentedMachine, view: View) -> bool:
    """Say what `_goes_on` would do, and return what it would; change nothing. A machine that does not answer would be left."""
    mirror = tenancies.mirror_of(found.tenancy)
    if mirror is None:
        return False
    ledger, nonce = tenancies.ledger(), found.rental.nonce
    if ledger.is_attended(nonce):
        return True
    try:
        with open_desk(found.tenancy.machine, mirror) as desk:
            state = known_summary(desk, mirror.run).state
    except NoRunError as error:
        view.note(f"{mirror.run}: {str(error).splitlines()[0]}")
        return is_kept_without_run(found.tenancy, mirror)
    except LaunchError as error:
        view.note(f"{mirror.run}: {str(error).splitlines()[0]}")
        return True
    if not is_over(state):
        view.note(f"{mirror.run} goes on: a process here would look after it")
        return True
    if found.tenancy.keeps:
        return True
    view.note(f"{mirror.run} is {state}: its files would come home before the end of its machine")
    return False


def _goes_on(found: RentedMachine, view: View) -> bool:
    """Deal with the run of a machine that no process can look after; return whether the machine is still wanted."""
    mirror = tenancies.mirror_of(found.tenancy)
    if mirror is None:
        return False  # its launch came to nothing
    tenant = take_over(found)
    if tenant is None:
        return True
    try:
        return _deal_with(tenant, mirror, view)
    except ServiceError as error:
        view.note(str(error))
        return tenant.rental.is_open
    except LaunchError as error:
        view.note(_unsure(tenant, error))
        return not tenant.is_past
    finally:
        tenant.release()


def _deal_with(tenant: Tenant, mirror: Mirror, view: View) -> bool:
    if tenant.is_past:
        end_at_limit(tenant, mirror, view)
        return False
    try:
        with open_desk(tenant.host, mirror, tenant.opening) as desk:
            state = known_summary(desk, mirror.run).state
    except UnreachableError as error:
        tenant.watch(view, error)
        raise
    except NoRunError:
        if end_without_run(tenant, mirror, view):
            return False
        raise
    if is_over(state):
        end_rent(tenant, mirror, state, view)
        return tenant.rental.is_open
    keeper = tenant.hand_over(mirror)
    view.note(f"{mirror.run} goes on: process {keeper.pid} looks after it from now on   {keeper.log}")
    return True


def _unsure(tenant: Tenant, error: LaunchError) -> str:
    """Return what is said of a machine whose run cannot be brought home just now."""
    words = str(error).splitlines()[0]
    left = "its time is up, so it is ended all the same" if tenant.is_past else f"left until {tenant.until}"
    return f"{tenant.tenancy.run}: {words}; {left}; {tenant.cost} so far, {tenant.price}"
