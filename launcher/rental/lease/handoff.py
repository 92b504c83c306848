"""Transfer a rental between processes: take it, ask for it, or leave it to a background keeper."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from launcher.base import own_variables
from launcher.base.clock import look_again_after
from launcher.errors import BadFileError, RefusedError, ServiceAuthError, ServiceError
from launcher.rental.lease.rental_lease import LOOK_S, YIELD_S, Lease
from launcher.rental.lease.renter import ProviderAccount, Rented, open_account
from launcher.rental.records import KEEPER_LOG, RentedMachine, ledger
from launcher.rental.renting import RentalReason
from launcher.rental.verdict import has_any_of

OTHER_KEY = "other-key"


class Keeper(NamedTuple):
    """The background process that manages a rental, and its log."""

    pid: int
    log: str


def hand_over(lease: Lease) -> Keeper:
    """Leave a rental to a background process, which follows the run and terminates the machine.

    It runs `launch attach` in a new session, and has the rental's lock from the start. Raises ServiceError if
    it cannot be started.
    """
    try:
        return start_keeper(lease)
    except Exception as error:  # bugs too: the user must know that the rental continues
        why = (error.strerror if isinstance(error, OSError) else None) or (str(error).splitlines() or [""])[0]
        if not isinstance(error, (OSError, BadFileError)):
            why = f"{type(error).__name__}: {why}"
        words = (
            f"{lease.still_rented}\n  no process could be started to end the rental: {why}\n"
            f"  discard the run's files   launch reconcile --adopt {lease.rental.instance} --force"
        )
        raise ServiceError(lease.host.name, RentalReason.STILL_BILLED, words) from error
    finally:
        lease.release()


def start_keeper(lease: Lease) -> Keeper:
    """Start the keeper process. Raises OSError, BadFileError."""
    book, record = lease.renter.ledger, lease.record
    book.rental(lease.nonce)  # raises if the ledger lacks the rental, which the keeper must find
    log = book.place(lease.nonce) / KEEPER_LOG
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    program = [sys.executable, "-P", "-c", "from launcher.cli import main; main()", "attach", record.run]
    with log.open("ab") as out:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=os.path.dirname(record.runs),
            env={**own_variables.inherited(), "LAUNCH_RUNS": record.runs},
            pass_fds=(lease.lock.fileno(),),
            start_new_session=True,
        )
    return Keeper(process.pid, str(log))


def keeper_log(nonce: str) -> Path | None:
    """Return the log of the background process that manages a rental. None if no process ever wrote one."""
    log = ledger().place(nonce) / KEEPER_LOG
    return log if log.exists() else None


def take(found: RentedMachine) -> Lease | None:
    """Take over the management of a rental. Return None if another process manages it.

    Raises BadFileError; RefusedError if the ledger cannot be written; ServiceAuthError without a key for
    the rental's account, because under another account's key the machine would look gone.
    """
    book, nonce = ledger(), found.rental.nonce
    inherited = book.inherited(nonce)
    try:
        lock = inherited or book.take(nonce)
    except OSError as error:
        raise RefusedError(
            f"{book.words(error)}\n  correct that, then type the same command again"
        ) from error
    if lock is None:
        return None
    try:
        account = open_account(found.record.settings)
        try:
            _check_is_of(account, found)
            account.learn_time()
        except BaseException:
            account.close()
            raise
    except BaseException:
        lock.release()
        raise
    return Lease(account, Rented(found.rental, lock), found.record, is_keeper=inherited is not None)


def take_over(found: RentedMachine) -> Lease | None:
    """Like `take`, but also replace a managing process whose key is refused, if this process's key is accepted.

    Raises the errors of `take`, and ServiceError if this key is refused too.
    """
    if (lease := take(found)) is not None or not ledger().is_refused(found.rental.nonce):
        return lease
    with contextlib.closing(open_account(found.record.settings)) as account:
        account.provider.instances()
    return take_idle(found)


def take_idle(found: RentedMachine) -> Lease | None:
    """Like `take`, but also ask a background process that only keeps the machine to give the rental up."""
    asking = ledger().ask_for(found.rental.nonce)
    try:
        until = time.monotonic() + YIELD_S
        while (lease := take(found)) is None and time.monotonic() < until:
            look_again_after(LOOK_S / 4)
        return lease
    finally:
        if asking is not None:
            asking.release()


def _check_is_of(account: ProviderAccount, found: RentedMachine) -> None:
    """Raise ServiceAuthError unless the machine was rented with this key or its account lists the machine."""
    provider, rental = account.provider, found.rental
    if rental.intent.account == provider.account:
        return
    if has_any_of(provider.instances(), rental):
        return
    name = found.record.machine.name
    raise ServiceAuthError(
        name,
        OTHER_KEY,
        f"{name}: the machine of {found.record.run} was rented with another API key, and the present key is of another account\n"
        f"  set {found.record.settings.variable} to that key     or, if that key is lost, and you have checked {account.page}   launch reconcile --dismiss {found.record.short}",
    )
