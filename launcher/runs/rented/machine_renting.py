"""Rent a machine for one launch: from a free instance type to a plain SSH host for the run.

The run's id is chosen first, because the ledger, the instance's name and its tags contain it. Any failure
before the run begins ends the rental at once, and reports the cost.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from launcher.backends.base.rental_choice import settings_of
from launcher.backends.runtimes import load
from launcher.base.whole_file import write_durably
from launcher.config.lookup import Lookup
from launcher.copy.run_id import new_run_id
from launcher.copy.runs_folder import make_runs_folder, runs_folder
from launcher.errors import (
    AuthRefusedError,
    CardBusyError,
    HostError,
    HostKeyError,
    RefusedError,
    ServiceError,
    UnknownOutcomeError,
)
from launcher.rental import records
from launcher.rental.lease.instance_keys import holding_key, login_key, new_key, registered_key, user_data
from launcher.rental.lease.instance_login import InstanceLogin, log_in, log_in_again
from launcher.rental.lease.rental_lease import Lease
from launcher.rental.lease.renter import ProviderAccount, Rented, open_account
from launcher.rental.ledger import usual_folder
from launcher.rental.price import Candidate, RentalChoice
from launcher.rental.provider import ProviderReason, is_passing
from launcher.rental.records import RentalRecord
from launcher.rental.renting import Instance, LaunchOptions, Rental, RentalReason, dollars
from launcher.runs.follow.view import Stage, View
from launcher.runs.launch.wanted_machine import Wanted
from launcher.runs.rented import rental_setup
from launcher.transport.ssh.new_keys import NEW_KEYS
from launcher.values.host import Host, MachineKeys
from launcher.values.plan import Plan

WAIT_S = 30.0
"""The interval between two checks for a free machine, in seconds."""


def rent(wanted: Wanted, choice: RentalChoice, plan: Plan, view: View) -> Lease:
    """Rent a machine, wait until it accepts a login, and set it up; return this process's lease of it.

    While no machine is free, request the offers again until the wait is over. Raises CardBusyError if none
    becomes free, HostError, and RefusedError if the ledger cannot be written; in these cases no machine is
    rented.
    """
    account = open_account(settings_of(wanted.host))
    try:
        return _Renting(wanted, choice, plan, account, view).rent()
    except OSError as error:
        account.close()
        raise RefusedError(account.ledger.words(error)) from error
    except BaseException:
        account.close()
        raise


class _Renting:
    """One rental from its intent to a machine that is ready for a run."""

    def __init__(
        self, wanted: Wanted, choice: RentalChoice, plan: Plan, account: ProviderAccount, view: View
    ) -> None:
        self._host, self._settings = wanted.host, settings_of(wanted.host)
        self._choice, self._wait_s = choice, wanted.wait_s
        self._candidates = self._choice.free if wanted.wait_s > 0 else self._choice.candidates()
        self._run = wanted.run or new_run_id(plan.job)
        self._needs_engine = load(plan.runtime).has_images
        self._renter, self._clock, self._view = account, account.clock, view
        self._host_key = new_key()

    def rent(self) -> Lease:
        lease = None
        try:
            with self._view.stage("rent") as stage:
                held, candidate = self._first_free(stage)
                lease = Lease(self._renter, held, self._record(held.rental, None))
                stage.text = self._words(held.rental, candidate)
            with self._view.stage("boot") as stage:
                instance = self._boot(held.rental, candidate, stage)
            lease.record = self._record(held.rental, instance)
            self._prepare(lease, held.rental.since + candidate.priced.boot_s)
        except BaseException as failure:
            if lease is not None:
                lease.give_up(self._view)
                if isinstance(failure, ServiceError) and failure.reason == RentalReason.NO_LOGIN:
                    raise self._login_refused(failure, lease) from failure
            raise
        return lease

    def _login_refused(self, failure: ServiceError, lease: Lease) -> ServiceError:
        """Return the error of a machine that refuses the login, with its cost and the next command."""
        if lease.rental.is_open:
            return failure  # its cost, and how to end it, was just reported
        host, key = self._host, self._settings.key
        mend = f"again, on another machine   launch --host {host.name} …"
        if isinstance(failure.__cause__, AuthRefusedError) and key is not None:
            mend = f'in {Lookup().file_of(host.name)}   identity_file = "…", the private half of key = "{key}"     or no key: launcher makes one'
        words = f"{failure}; it was ended, and cost at most {lease.cost}\n  {mend}"
        return ServiceError(failure.host, failure.reason, words)

    # rent

    def _first_free(self, stage: Stage) -> tuple[Rented, Candidate]:
        """Rent the first free candidate; wait for one if requested."""
        keeping = holding_key()
        try:
            return self._first_of(self._setup(), stage)
        finally:
            if keeping is not None:
                keeping.release()

    def _first_of(self, setup: LaunchOptions, stage: Stage) -> tuple[Rented, Candidate]:
        until = self._clock.now() + self._wait_s
        candidates, busy = self._candidates, None
        while True:
            for candidate in candidates:
                words = f"{candidate.priced.offer.type} in {candidate.region}"
                stage.progress(words)
                self._renter.provider.waits = functools.partial(_show_wait, stage, words)
                try:
                    return self._try(candidate, setup), candidate
                except ServiceError as error:
                    if error.reason != ProviderReason.NO_CAPACITY:
                        raise self._refused(error) from error
                    busy = error
            if self._clock.now() >= until:
                raise self._nothing_free(busy)
            stage.progress("waiting: nothing is free just now")
            self._clock.sleep(max(0.0, min(WAIT_S, until - self._clock.now())))
            candidates = self._free_now()

    def _free_now(self) -> tuple[Candidate, ...]:
        """Request the offers again; empty if none is free, or the service does not answer at present."""
        try:
            return self._choice.renewed(self._renter.provider.offers()).free
        except ServiceError as error:
            if not is_passing(error):
                raise
            return ()

    def _nothing_free(self, busy: ServiceError | None) -> CardBusyError:
        names = ", ".join(one.offer.type for one in self._choice.found)
        why = str(busy).splitlines()[0] if busy is not None else f"{self._host.name}: none is free"
        words = f"{why}\n  free types   launch offers     or wait for one   --wait 30m"
        return CardBusyError(words, f"no capacity of {names}")

    def _refused(self, error: ServiceError) -> ServiceError:
        """Return the error of a launch, with a note that no machine is rented, if that is certain."""
        own = (one for one in self._renter.ledger.rentals() if one.intent.run == self._run)
        if isinstance(error, UnknownOutcomeError) or any(one.is_open for one in own):
            return error
        check = f"nothing was rented; check without renting   launch --host {self._host.name} --dry-run"
        return type(error)(error.host, error.reason, f"{error}\n  {check}", error.retry_s)

    def _try(self, candidate: Candidate, setup: LaunchOptions) -> Rented:
        """Launch one candidate. On an interrupt, end any instance that it may have created."""
        deadline = self._clock.now() + candidate.priced.limit_s
        before = {rental.nonce for rental in self._renter.ledger.rentals()}
        try:
            return self._renter.rent(candidate.priced.offer, candidate.region, self._run, deadline, setup)
        except HostError:
            raise
        except BaseException:
            self._end_new_ones(before)
            raise

    def _end_new_ones(self, before: set[str]) -> None:
        """End the instance of an interrupted launch, and report it; raise UnknownOutcomeError if an instance may still appear."""
        for rental in self._renter.ledger.rentals():
            if rental.nonce in before or rental.intent.run != self._run or not rental.is_open:
                continue
            with contextlib.suppress(HostError, OSError):
                self._renter.end(rental, "the launch was interrupted")
            if self._renter.known(rental).is_open:
                name, cost = self._host.name, dollars(rental.intent.cents_per_hour)
                raise UnknownOutcomeError(
                    name,
                    RentalReason.STILL_BILLED,
                    f"{name}: the launch was interrupted, and an instance of it may still appear, at {cost}/h\n  end it   launch reconcile",
                ) from None
            ended = self._renter.known(rental)
            self._view.note(
                f"{self._host.name}: instance {ended.instance} had been rented; it was ended, and cost at most {self._renter.cost(ended)}"
            )
            return
        self._view.note(f"{self._host.name}: nothing was rented")

    def _setup(self) -> LaunchOptions:
        """Return the settings for creating an instance; launcher's login key is in the account from here on."""
        settings = self._settings
        records.remember_service(settings)
        name = settings.key or registered_key(self._renter.provider).name
        return LaunchOptions(
            ssh_key=name,
            image=settings.image,
            file_systems=(settings.file_system,) if settings.file_system else (),
            firewalls=(settings.firewall,) if settings.firewall else (),
            user_data=user_data(self._host_key),
        )

    def _words(self, rental: Rental, candidate: Candidate) -> str:
        where = f"{candidate.priced.offer.type} in {candidate.region}, instance {rental.instance}"
        return f"{where}; {candidate.priced.offer.price}, at most {dollars(candidate.priced.largest)}"

    # boot

    def _boot(self, rental: Rental, candidate: Candidate, stage: Stage) -> Instance:
        def report(rental: Rental, instance: Instance | None) -> None:
            word = "not listed yet" if instance is None else instance.word
            stage.progress(f"{word}, {dollars(rental.cents_at(self._clock.now()))} so far")

        instance = self._renter.wait_until_ready(rental, candidate.priced.boot_s, report)
        now = self._clock.now()
        stage.text = f"{now - rental.since:.0f} s, {dollars(rental.cents_at(now))} so far; {instance.ip}"
        return instance

    def _record(self, rental: Rental, instance: Instance | None) -> RentalRecord:
        """Return the record of a rental: its machine has the table's keys, and the address of the instance."""
        host = self._host
        place = self._renter.ledger.place(rental.nonce)
        own = {} if self._settings.key else {"identity_file": str(self._login_key)}
        machine = Host(
            **{
                **own,
                **{
                    key: getattr(host, key)
                    for key in MachineKeys.model_fields
                    if getattr(host, key) is not None
                },
                "name": host.name,
                "address": "0.0.0.0" if instance is None else instance.ip,  # noqa: S104 - until it has booted
                "user": host.user or self._settings.usual_user,
                "known_hosts": str(place / records.KNOWN_HOSTS),
                "hold": 0,
                "sudo": host.sudo or self._needs_engine,
            }
        )
        return RentalRecord(
            run=self._run,
            nonce=rental.nonce,
            machine=machine,
            settings=self._settings,
            runs=str(runs_folder()),
        )

    @property
    def _login_key(self) -> Path:
        return login_key(usual_folder()).file

    # the machine

    def _prepare(self, lease: Lease, until: float) -> None:
        """Log in, replace the host key, record the rental's end on the machine, and install Docker if the job needs it."""
        place = self._renter.ledger.place(lease.nonce)
        self._expect(place, lease.host, self._host_key.public)
        make_runs_folder(Path(lease.record.runs))
        records.write(lease.record)
        with self._view.stage("login") as stage:
            with contextlib.closing(self._log_in(lease, until, stage)) as login:
                own_key = login.replace_host_key()
            self._expect(place, lease.host, own_key)
            with contextlib.closing(log_in_again(lease.host, stage.progress)) as login:
                login.note_end(lease.due_s)
                stage.text = f"{login.about}, the host key that it was given just now"
        if self._needs_engine:
            with self._view.stage("setup") as stage, contextlib.closing(InstanceLogin(lease.host)) as login:
                rental_setup.set_up(login, place / records.SETUP_LOG, stage)

    def _log_in(self, lease: Lease, until: float, stage: Stage) -> InstanceLogin:
        """Log in to the machine. It must show the host key that launcher gave it, unless the user accepts a new one."""
        try:
            return log_in(lease.host, self._clock, until, stage.progress)
        except HostKeyError as error:
            image = self._settings.image or "the image"
            words = (
                f"{lease.host.name}: {image} did not take the host key that was given to it, so the machine's identity is not proven\n"
                f"  {str(error).splitlines()[0]}\n"
                "  if you trust the network   the same command with --accept-new-host-key     or another   image = …"
            )
            if not NEW_KEYS.are_accepted:
                raise HostKeyError(lease.host.name, words) from error
        (self._renter.ledger.place(lease.nonce) / records.KNOWN_HOSTS).unlink()
        return log_in(lease.host, self._clock, until, stage.progress)

    def _expect(self, place: Path, machine: Host, key: str) -> None:
        """Write the machine's known_hosts file with only this key."""
        name = machine.address if machine.port in (None, 22) else f"[{machine.address}]:{machine.port}"
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(place / records.KNOWN_HOSTS, f"{name} {key}\n".encode())


def _show_wait(stage: Stage, words: str, wait_s: float) -> None:
    """Show that a launch waits for the service's rate limit, and then that it no longer waits."""
    if wait_s > 0:
        words += f": waits at least {wait_s:.0f} s: the service allows one launch in 12 s, for all commands here together"
    stage.progress(words)
