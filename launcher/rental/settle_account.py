"""Reconcile an account: download ended runs, terminate their machines and orphans, and manage the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from launcher.base.clock import look_again_after
from launcher.errors import (
    BadFileError,
    LaunchError,
    NoRunError,
    RefusedError,
    RunError,
    ServiceError,
    UsageError,
)
from launcher.rental import records
from launcher.rental.lease.handoff import hand_over, take, take_idle, take_over
from launcher.rental.lease.instance_keys import forget_key
from launcher.rental.lease.release import RentedRun, end_named, end_rent, lose_words
from launcher.rental.lease.rental_lease import Lease, RentalView, Step
from launcher.rental.lease.renter import ProviderAccount, Termination, open_account
from launcher.rental.provider import PROVIDERS, module_of
from launcher.rental.reconcile import Reconciled, reconcile, survey
from launcher.rental.records import RentalRecord, RentedMachine
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import Rental, RentalState, dollars
from launcher.rental.service_clock import clock_of
from launcher.rental.verdict import GRACE_S, has_any_of, owner_of

WAKE_S, LOOK_S = 20.0, 0.5
"""The seconds a managing process may take to notice a passed limit, and the interval between checks."""
RunOf = Callable[[RentalRecord], RentedRun | None]
"""Return the run of a rental, or None if it never started."""


class InteractiveView(RentalView, Protocol):
    """A view that can also ask the user."""

    def agrees(self, question: str) -> bool | None:
        """Return the user's answer, or None without a terminal."""


class TerminationRequest(NamedTuple):
    """Instances that the user wants terminated, rented here or not, and the start time (None means now).

    With `force`, terminate them even if files of their runs are lost. `is_sure`: do not ask about instances
    of other computers.
    """

    instances: Sequence[str] = ()
    after: float | None = None
    force: bool = False
    is_sure: bool = False


class SettledAccounts(NamedTuple):
    """The results of the accounts that answered, and the errors of the others.

    `unknown` are open rentals of providers that this version does not know.
    """

    reports: list[Reconciled]
    failed: list[LaunchError]
    unknown: list[Rental]


def reconcile_all(
    tables: Iterable[RentalSettings],
    named: TerminationRequest,
    run_of: RunOf,
    view: InteractiveView,
    *,
    dry_run: bool,
) -> SettledAccounts:
    """Reconcile the accounts where this user has rented, and the accounts of the given tables.

    Without any of these, reconcile the default accounts of this user's keys. A provider with an open rental
    is always asked. With `dry_run`, change nothing. One account's failure does not stop the others. Raises
    RunError if the files of a named machine cannot be downloaded. Raises RefusedError if the user does not
    agree to terminate a machine that was not rented here.
    """
    reports: list[Reconciled] = []
    failed: list[LaunchError] = []
    for settings in accounts_of(tables, named, failed):
        try:
            reports.append(_reconcile(settings, named, run_of, view, dry_run=dry_run))
        except (BadFileError, ServiceError) as error:
            failed.append(error)
    open_ones = (one for one in records.ledger().rentals() if one.is_open)
    return SettledAccounts(
        reports, failed, [one for one in open_ones if one.intent.provider not in PROVIDERS]
    )


def accounts_of(
    tables: Iterable[RentalSettings], named: TerminationRequest, failed: list[LaunchError]
) -> list[RentalSettings]:
    """Return the accounts to reconcile. Add the error of an unreadable address file to `failed`."""
    found: dict[tuple[str, str], RentalSettings] = {}
    for provider in PROVIDERS:
        try:
            found |= {(one.provider, one.api): one for one in records.accounts_at(provider)}
        except BadFileError as error:
            failed.append(error)
    found |= {(one.provider, one.api): one for one in tables}
    usual = {one.intent.provider for one in records.ledger().rentals() if one.is_open} & PROVIDERS.keys()
    if not found and not usual:
        usual = {*filter(_may_have_key, PROVIDERS)} or ({*PROVIDERS} if named.instances else set())
    known = {provider for provider, _ in found}
    return [*found.values(), *(module_of(one).SETTINGS.model_validate({}) for one in sorted(usual - known))]


def _may_have_key(provider: str) -> bool:
    """Whether this user has a key for a provider.

    True for an unreadable key file; its use reports the error.
    """
    try:
        return module_of(provider).person_key() is not None
    except BadFileError:
        return True


def end_abandoned(settings: RentalSettings, runs: Collection[str], view: RentalView) -> None:
    """Terminate the machines of launches whose client was killed before a run could start.

    Wait until the machines are gone, but do not wait for one that may still appear. Raises BadFileError or
    ServiceAuthError without a key, ServiceError, and RefusedError if the ledger cannot be written.
    """
    left = records.abandoned(runs, settings.provider)
    if not left:
        return
    with contextlib.closing(open_account(settings)) as account, _asking(view, settings) as stage:
        done = reconcile(account, only=left, waits=False, report=stage.progress)
        for ending in done.ended:
            cost = "" if ending.cents is None else f"; it cost at most {dollars(ending.cents)}"
            view.note(f"{ending.instance}: {ending.why}, so it was ended{cost}")
        for ending in done.left:
            view.note(_still_listed(account, ending))


def give_up_machine(run: str, view: RentalView) -> None:
    """Terminate the machine of a run that never started, unless another process manages it.

    Raises ServiceError. Raises RunError if a launch without an answer may still create a machine.
    """
    if records.abandoned([run]):
        for account in records.accounts():
            end_abandoned(account, [run], view)
        if records.abandoned([run]):
            raise RunError(f"{run}: a machine of its launch may still be billed\n  end it   launch reconcile")
    found = records.rented_for(run)
    if found is not None and found.rental.is_open and (lease := take(found)) is not None:
        lease.give_up(view)


def open_by_run() -> dict[str, Rental]:
    """Return the open rentals by run: the run that uses the machine and the run it was rented for."""
    open_ones = {rental.intent.run: rental for rental in records.ledger().rentals() if rental.is_open}
    return open_ones | {one.record.run: one.rental for one in records.rented() if one.rental.is_open}


def dismiss(rental: Rental) -> Rental:
    """Stop all messages about an open rental whose API key is lost.

    This says nothing about its machine. Raises UsageError if the present key could terminate it. Raises
    ServiceError.
    """
    known = [one.record.settings for one in records.rented() if one.rental.nonce == rental.nonce]
    provider = rental.intent.provider
    has_key = module_of(provider).person_key() is not None
    there = known or records.accounts_at(provider) or [module_of(provider).SETTINGS.model_validate({})]
    if has_key and any(_is_in_reach(rental, one) for one in there):
        raise UsageError(
            f"{rental.intent.run}: the API key that is here can end its machine, so it is not dismissed\n  end it   launch reconcile"
        )
    now = clock_of(provider).now()
    return records.ledger().step(rental.nonce, RentalState.DISMISSED, now, why="dismissed by you")


def _is_in_reach(rental: Rental, settings: RentalSettings) -> bool:
    with contextlib.closing(open_account(settings)) as account:
        provider = account.provider
        return rental.intent.account == provider.account or has_any_of(provider.instances(), rental)


def _reconcile(
    settings: RentalSettings,
    named: TerminationRequest,
    run_of: RunOf,
    view: InteractiveView,
    *,
    dry_run: bool,
) -> Reconciled:
    renter = open_account(settings)
    try:
        with _asking(view, settings):
            renter.learn_time()
            is_early = named.after is not None and renter.clock.now() < named.after
            adopted = () if is_early else _named_at(settings, named)
            there = (one for one in records.rented() if one.rental.intent.provider == settings.provider)
            found = _at(renter, [_with_its_boot(renter, one, run_of) for one in there])
        if not dry_run and named.after is None and not named.is_sure:
            _agree_to_end(renter, adopted, view)
        unsure = _unsure_of(renter, view)
        if dry_run:
            wanted = {one.rental.intent.run for one in found if _would_be_wanted(one, run_of, view)}
            with _asking(view, settings):
                judged = survey(renter, wanted | unsure, adopted)
            return Reconciled(renter.provider.account, (), judged, renter.ledger.unreadable())
        for one in found:
            if one.rental.instance in adopted and not named.force:
                _download_named(one, run_of, view, is_due=named.after is not None)
        wanted = {
            one.rental.intent.run
            for one in found
            if one.rental.instance not in adopted and _is_still_wanted(one, run_of, view)
        }
        downloading = _downloading(found, renter, run_of, view)
        with _asking(view, settings) as stage:
            done = reconcile(renter, wanted | unsure, adopted, downloading, report=stage.progress)
        for ending in done.left:
            view.note(_still_listed(renter, ending))
        if done.ended:
            forget_key(renter)
        return done._replace(ended=(*_ended_of(found, renter, done.ended), *done.ended))
    finally:
        renter.close()


def _named_at(settings: RentalSettings, named: TerminationRequest) -> Sequence[str]:
    """Return the named instances that may belong to an account.

    One that was rented at another account is left out, since two accounts may use the same id.
    """
    elsewhere = {
        one.rental.instance
        for one in records.rented()
        if (one.record.settings.provider, one.record.settings.api) != (settings.provider, settings.api)
    }
    return [one for one in named.instances if one not in elsewhere]


def _agree_to_end(renter: ProviderAccount, adopted: Sequence[str], view: InteractiveView) -> None:
    """Ask whether to terminate named instances that were not rented here, whose files cannot be downloaded.

    Raises RefusedError if the user declines or no terminal is available.
    """
    rentals = renter.rentals()
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
    words = "\n".join([*lines, "not rented from this computer: files that are only on it are lost with it"])
    answer = view.agrees(words)
    if answer is None:
        ids = " ".join(f"--adopt {one.id}" for one in others)
        raise RefusedError(
            f"nothing was ended: {words}\n  to terminate them anyway   launch reconcile {ids} --yes"
        )
    if not answer:
        raise RefusedError(
            "nothing was ended: you answered no\n  list the machines   launch reconcile --dry-run"
        )


@contextlib.contextmanager
def _asking(view: RentalView, settings: RentalSettings) -> Iterator[Step]:
    """Show during the block that an account is being asked."""
    with view.stage(f"asking {urlsplit(settings.api).hostname}") as stage:
        stage.text = None
        yield stage


def _download_named(found: RentedMachine, run_of: RunOf, view: RentalView, *, is_due: bool) -> None:
    """Download the files of a machine that the user wants terminated now.

    Raises RunError if another process keeps the machine, unless `is_due`.
    """
    record, run = found.record, run_of(found.record)
    if run is None:
        return  # it never started
    with view.stage("adopt") as stage:
        stage.progress(f"asking for the machine of {record.short}, if a process here manages it")
        lease = take_idle(found)
        stage.text = None
    if lease is not None:
        end_named(lease, run, view, is_due=is_due)
    elif not is_due:
        raise RunError(
            f"{record.run}: its machine is not terminated: a process on this computer manages it, and terminates it after the last download\n"
            f"  end the run   launch stop {record.short}\n  {lose_words(found.rental.instance)}"
        )


def _downloading(
    found: Sequence[RentedMachine], renter: ProviderAccount, run_of: RunOf, view: RentalView
) -> set[str]:
    """Return the nonces of machines past their limit whose files are being downloaded now.

    The managing process was asleep at the limit, for example on a laptop. A stopped process loses the machine
    to this command. A process that does nothing for WAKE_S seconds hangs; the note that is shown says that
    its remaining files may be lost.
    """
    until, downloading = time.monotonic() + WAKE_S, set()
    for one in found:
        rental, nonce = renter.known(one.rental), one.rental.nonce
        while renter.clock.now() >= rental.intent.deadline + GRACE_S and renter.ledger.is_locked(nonce):
            if renter.ledger.is_stopped(nonce):
                _is_still_wanted(one, run_of, view)
                break
            if records.is_downloading(nonce, renter.clock.now()):
                downloading.add(nonce)
                break
            if time.monotonic() >= until:
                words = "files that it had not downloaded by then may be lost"
                records.note_lost(nonce, words)
                view.note(
                    f"{rental.intent.run}: the process here that manages its machine does nothing, and the time of the rental is up; {words}"
                )
                break
            look_again_after(LOOK_S)
    return downloading


def _ended_of(
    found: Sequence[RentedMachine], renter: ProviderAccount, done: Collection[Termination]
) -> Iterator[Termination]:
    """Yield the machines terminated after their download, and not by the later check of the list."""
    for one in found:
        rental = renter.known(one.rental)
        is_told = any(rental.instance == ending.instance for ending in done)
        if rental.instance is not None and not rental.is_open and not is_told:
            yield Termination(rental.instance, rental.why or "its run has ended", rental)


def _still_listed(renter: ProviderAccount, ending: Termination) -> str:
    whose = "" if ending.rental is None else f", {renter.cost(ending.rental)} so far"
    return f"{ending.instance} is still listed after its termination{whose}: try again   launch reconcile     or end it at   {renter.page}"


def _with_its_boot(renter: ProviderAccount, found: RentedMachine, run_of: RunOf) -> RentedMachine:
    """Return a machine. If the record of its boot was cut off, restore the record.

    Without the record, the machine would be terminated with all results of its run.
    """
    rental = found.rental
    has_booted = rental.state in (RentalState.INTENT, RentalState.LAUNCHED) and not found.is_held
    if not has_booted or run_of(found.record) is None:
        return found
    instance = renter.find(rental)
    if instance is None or not instance.is_ready:
        return found
    try:
        renter.ledger.step(rental.nonce, RentalState.LAUNCHED, rental.intent.time, instance=instance.id)
        return found._replace(rental=renter.ledger.step(rental.nonce, RentalState.READY, renter.clock.now()))
    except OSError as error:
        raise RefusedError(renter.ledger.words(error)) from error


def _at(account: ProviderAccount, found: Sequence[RentedMachine]) -> list[RentedMachine]:
    """Return this user's machines that are ready at an account, and may therefore have a run.

    A machine rented with another key counts if the account lists it, since a key may be replaced.
    """
    provider = account.provider
    ready = [one for one in found if one.rental.state is RentalState.READY]
    own = [one for one in ready if one.rental.intent.account == provider.account]
    if len(own) == len(ready):
        return own
    listed = provider.instances()
    return [one for one in ready if one in own or has_any_of(listed, one.rental)]


def _unsure_of(account: ProviderAccount, view: RentalView) -> set[str]:
    """Return the runs whose state cannot be determined here. Their machines stay until their limit."""
    runs = set()
    for rental in account.rentals():
        if rental.state is RentalState.READY and (why := records.damage(account.ledger, rental)):
            view.note(f"{rental.intent.run}: {why}; its machine is left until its limit")
            runs.add(rental.intent.run)
    return runs


def _would_be_wanted(found: RentedMachine, run_of: RunOf, view: RentalView) -> bool:
    """Preview `_is_still_wanted`: report its actions and return its result, but change nothing.

    A machine that does not answer would stay.
    """
    record, run = found.record, run_of(found.record)
    if run is None:
        return False
    if records.ledger().is_attended(found.rental.nonce):
        return True
    try:
        from launcher.transport import connecting  # few commands need it

        state = run.has_ended(connecting.connect)
    except NoRunError as error:
        view.note(f"{record.run}: {str(error).splitlines()[0]}")
        return record.keeps and run.is_known
    except LaunchError as error:
        view.note(f"{record.run}: {str(error).splitlines()[0]}")
        return True
    if state is None:
        view.note(f"{record.run} continues: a process on this computer would manage its machine")
        return True
    if record.keeps:
        return True
    view.note(f"{record.run} is {state}: its files would be downloaded before its machine is terminated")
    return False


def _is_still_wanted(found: RentedMachine, run_of: RunOf, view: RentalView) -> bool:
    """Handle the run of a machine that no process manages. Return whether the machine is still wanted."""
    run = run_of(found.record)
    if run is None:
        return False  # its launch failed
    lease = take_over(found)
    if lease is None:
        return True
    try:
        is_wanted = end_rent(lease, run, view)
        if is_wanted and not lease.is_released:
            keeper = hand_over(lease)
            view.note(
                f"{found.record.run} continues: process {keeper.pid} manages its machine from now on   {keeper.log}"
            )
    except ServiceError as error:
        view.note(str(error))
        return lease.rental.is_open
    except LaunchError as error:
        view.note(_unsure(lease, error))
        return not lease.is_past
    finally:
        lease.release()
    return is_wanted


def _unsure(lease: Lease, error: LaunchError) -> str:
    """Return the message about a machine whose run cannot be downloaded now."""
    words = str(error).splitlines()[0]
    left = "its time is up, so it is ended anyway" if lease.is_past else f"left until {lease.until}"
    return f"{lease.record.run}: {words}; {left}; {lease.cost} so far, {lease.price}"
