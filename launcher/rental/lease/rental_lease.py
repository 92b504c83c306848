"""A lease: this process manages a rented machine and ends the rental.

handoff.py takes a lease, and passes it to another process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from launcher.base.clock import look_again_after
from launcher.errors import (
    HostError,
    RefusedError,
    ServiceError,
    UnreachableError,
)
from launcher.rental.lease.download_deadline import DownloadDeadline, Limits
from launcher.rental.lease.instance_keys import forget_key
from launcher.rental.lease.renter import ProviderAccount, Rented
from launcher.rental.provider import is_passing
from launcher.rental.records import (
    NO_CHECKPOINT,
    RentalRecord,
    note_downloading,
    write,
)
from launcher.rental.renting import Instance, Rental, RentalReason, minutes_text
from launcher.rental.verdict import GRACE_S, loss
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host

LOOK_S = 1.0
LAST_S = 60.0
"""A machine is terminated at least this many seconds before its limit.

The termination takes time, and so does the list of lost files.
"""
YIELD_S = 10.0
"""A process that only keeps a machine must give it up on request within this many seconds."""
TAKEN = "taken"


class Step(Protocol):
    """A step shown to the user while it lasts. `text` is shown at its end; None shows nothing."""

    text: str | None

    def progress(self, step: str, /) -> None:
        """Show the progress."""


class RentalView(Protocol):
    """A view that shows a rental's events to the user."""

    def note(self, text: str) -> None:
        """Show a message."""

    def stage(self, name: str) -> AbstractContextManager[Step]:
        """Show a step while it lasts."""


class Lease:
    """This process's hold on a rented machine. Call `release`, or handoff.py's `hand_over`, when done."""

    def __init__(
        self, account: ProviderAccount, held: Rented, record: RentalRecord, *, is_keeper: bool = False
    ) -> None:
        """Manage a rental whose lock this process has.

        `is_keeper`: this is the background process that was started for the rental.
        """
        self.renter, self.lock = account, held.lock
        self.is_keeper = is_keeper
        self.nonce, self.record = held.rental.nonce, record
        self._known = held.rental
        self._said: set[str] = set()
        self.is_released = False
        self.is_home = False
        """Whether all files of the run are on this computer, so that only the termination is left."""
        self._download = DownloadDeadline(
            self._limits, account.clock, lambda until: note_downloading(self.nonce, until)
        )

    @property
    def host(self) -> Host:
        """The machine."""
        return self.record.machine

    @property
    def rental(self) -> Rental:
        """The rental's current entry in the ledger, or the last one known to this process."""
        self._known = self.renter.known(self._known)
        return self._known

    @property
    def cost(self) -> str:
        """The maximum cost so far of all machines rented for the same run."""
        return self.renter.cost(self.rental)

    @property
    def price(self) -> str:
        """The price per hour."""
        return self.rental.price

    def _limits(self) -> Limits:
        """Return when the run must stop, to leave time for downloads, and when the machine is terminated."""
        rental = self.rental
        download_reserve_s, deadline = rental.download_reserve_s, rental.intent.deadline
        return Limits(deadline - download_reserve_s, deadline - min(LAST_S, download_reserve_s / 10))

    @property
    def is_due(self) -> bool:
        """Whether the time reserved for downloads has begun."""
        return self._download.is_due

    @property
    def is_overdue(self) -> bool:
        """Whether half of the time reserved for downloads has passed.

        A run that has not stopped by then is left alone, and its files up to now are downloaded.
        """
        return self.is_due and self.renter.clock.now() >= sum(self._limits()) / 2

    @property
    def is_past(self) -> bool:
        """Whether the machine must be terminated now, even if this computer lacks files of the run."""
        return self.left_s <= 0

    @property
    def left_s(self) -> float:
        """The seconds left until the machine must be terminated."""
        return self._limits().ends - self.renter.clock.now()

    @property
    def due_s(self) -> float:
        """The seconds that the run may still continue; negative once `is_due`."""
        return self._limits().due - self.renter.clock.now()

    def opening(self, host: Host) -> HostClient:
        """Connect to the machine. The connection is cut at the download deadline.

        Raises HostError, and ServiceError `limit` after the deadline.
        """
        if self._download.is_over:
            raise self.over(RentalReason.LIMIT, "its time was up")
        from launcher.transport import connecting  # few commands need it

        return self._download.guarded(connecting.connect(host))

    def guard(self, client: HostClient | None) -> None:
        """Cut an open connection to the machine at the download deadline too."""
        if client is not None:
            self._download.guarded(client)

    def extend_download(self, seconds: float) -> None:
        """Allow this many more seconds, e.g. to list the missing files."""
        self._download.extend(seconds)

    @property
    def still_rented(self) -> str:
        """The message for a process that ends before the rental does."""
        return f"{self.host.name}: its machine is still rented: {self.cost} so far, {self.price}   launch reconcile"

    @property
    def until(self) -> str:
        """The limit of the rental, in this machine's time zone."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.rental.intent.deadline))

    @property
    def cron_note(self) -> str:
        """The message on how to end the rental from another machine."""
        return f"in case this computer goes down: a line for crontab -e on another computer that has the API key; it removes itself once the rental has ended:   {cron_line(self.rental)}"

    def assign_to(self, run: str, runs: str) -> None:
        """Use the machine for another run, which is not on it yet. `runs` is the folder of its local copy.

        Raises RefusedError if that cannot be recorded; the machine then stays with its old run.
        """
        if run == self.record.run:
            return
        record = self.record.model_copy(update={"run": run, "runs": runs})
        try:
            write(record)
        except OSError as error:
            raise RefusedError(
                f"{self.renter.ledger.words(error)}\n  no run was begun; make room, then try again"
            ) from error
        self.record = record

    # While the run continues

    def watch(self, view: RentalView, error: UnreachableError | None = None) -> None:
        """Check whether the time is up and, after a lost link, whether the machine still exists.

        Raises ServiceError, with the cost, once the rental is over and the run can no longer continue on this
        machine. With the reason `limit` the machine must still be terminated.
        """
        self.renter.learn_time()
        self._check_hold()
        rental = self.rental
        if not rental.is_open:
            raise self.over(rental.why or RentalReason.GONE, "its rental was ended by another command")
        if self.is_overdue:
            raise self.over(RentalReason.LIMIT, "its time was up")
        if error is not None:
            self.look(view, is_silent=True)

    def _check_hold(self) -> None:
        """Raise ServiceError if another command took the machine while this process was stopped."""
        if self.lock.is_valid:
            return
        self._close()
        words = f"{self.record.run}: while this process was stopped another command took over its machine"
        raise ServiceError(
            self.host.name, TAKEN, f"{words}\n  to follow it   launch attach {self.record.short}"
        )

    def look(self, view: RentalView, *, is_silent: bool = False) -> None:
        """Ask the provider whether an unused or silent machine still exists. Report a silent one's state.

        Raises ServiceError, with the cost, if it is gone. A provider that does not answer changes nothing.
        """
        try:
            found = self.renter.find(self.rental)
        except ServiceError as unanswered:
            if not is_passing(unanswered):
                raise
            return  # this computer's network may be down
        if (lost := loss(found)) is not None:
            self._end(lost.reason)
            raise self.over(*lost)
        if is_silent:
            self._tell_state(found, view)

    def _tell_state(self, instance: Instance | None, view: RentalView) -> None:
        if instance is not None and not instance.is_ready and instance.word not in self._said:
            self._said.add(instance.word)
            view.note(
                f"{self.host.name}: the provider says that the machine is '{instance.word}'; {self.cost} so far, {self.price}"
                f"   end it   launch reconcile --adopt {instance.id} --force"
                f"   continue elsewhere   launch recover {self.record.short} --host {self.host.name} --abandon"
            )

    def over(self, reason: str, why: str) -> ServiceError:
        """Return the error that explains why a run cannot continue on this machine."""
        run, short, name = self.record.run, self.record.short, self.host.name
        words = f"{name}: {run}: {why}; it cost at most {self.cost}"
        if self.record.has_checkpoint:
            mend = f"from a checkpoint that is here   launch recover {short} --host {name}"
        else:
            mend = f"{NO_CHECKPOINT}   launch rerun {short} --host {name}"
        return ServiceError(name, reason, f"{words}\n  {mend}")

    def is_left_alone_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition.

        Return False once the rental is over or another command manages the machine.
        """
        while not condition():
            if not self.lock.is_valid:
                self._close()
                return False
            if not self.rental.is_open or (self.renter.ledger.is_asked_for(self.nonce) and self._gives_up()):
                return False
            look_again_after(LOOK_S)
        return True

    def _gives_up(self) -> bool:
        """Release the machine for the command that asks for it. Return whether that command has taken it.

        If the command ended first, manage the machine again and return False.
        """
        book, until = self.renter.ledger, time.monotonic() + 2 * YIELD_S
        self.lock.release()
        while book.is_asked_for(self.nonce) and time.monotonic() < until:
            look_again_after(LOOK_S / 4)
        lock = book.take(self.nonce)
        if lock is not None:
            self.lock = lock
            return False
        self._close()
        return True

    def is_left_alone_for(self, seconds: float) -> bool:
        """Wait this many seconds; like `is_left_alone_until`, return False once the machine is not managed here."""
        clock = self.renter.clock
        until = clock.now() + seconds
        return self.is_left_alone_until(lambda: clock.now() >= until)

    def note_refused(self) -> None:
        """Record for other commands that the account refuses this process's key. Raises OSError."""
        self.renter.ledger.note_refused(self.nonce)

    @property
    def is_left_by_run(self) -> bool:
        """Whether another command is moving the run to another host and still needs this machine."""
        return self.renter.ledger.is_left_by_run(self.nonce)

    # The end of the rental

    def end(self, why: str, view: RentalView) -> None:
        """Terminate the machine.

        Return once the provider no longer lists it. Raises ServiceError if it stays listed.
        """
        try:
            self._end_as_stage(why, view)
        except OSError:  # from a closed terminal or a log on a full disk: terminate it anyway
            self._end(why)
        forget_key(self.renter)

    def _end_as_stage(self, why: str, view: RentalView) -> None:
        with view.stage("end") as stage:
            stage.progress(f"the rental of {self.host.name}'s machine")
            try:
                ended = self._end(why)
            except ServiceError as error:
                if error.reason == RentalReason.STILL_BILLED:
                    raise
                words = f"{error}\n  {self.still_rented}"
                raise type(error)(error.host, error.reason, words, error.retry_s) from error
            minutes = (ended.ended or self.renter.clock.now()) - ended.since
            stage.text = f"the machine is gone: {minutes_text(minutes / 60)}, at most {self.cost}"

    def give_up(self, view: RentalView) -> None:
        """Terminate the machine after the failure being handled, report the cost, and release the lease.

        A failed termination is only reported, since the caller raises the first failure. But if the first
        failure was an interrupt, or another interrupt comes, raise ServiceError, so that the user learns that
        the machine may still be rented.
        """
        try:
            if self.rental.is_open:
                self._give_up(view)
        finally:
            self.release()

    def _give_up(self, view: RentalView) -> None:
        words, failure = self.still_rented, sys.exception()  # in case of an interrupt
        try:
            self.end("the launch failed", view)
            words = ""
        except (HostError, OSError) as error:
            words = str(error)
        finally:
            if words and self.rental.is_open and not isinstance(sys.exception() or failure, Exception):
                raise ServiceError(self.host.name, RentalReason.STILL_BILLED, words) from None
        if words:
            view.note(words)

    def _end(self, why: str) -> Rental:
        return self.renter.end(self.rental, why)

    def release(self) -> None:
        """Release the lease. Repeated calls do nothing."""
        if not self.is_released:
            self.lock.release()
            self._close()

    def _close(self) -> None:
        self.is_released = True
        self._download.end()
        self.renter.close()


def cron_line(rental: Rental) -> str:
    """Return a crontab line that ends a rental after its limit, from a machine without this ledger.

    The line then removes itself.
    """
    instance, until = rental.instance, rental.intent.deadline + GRACE_S
    after = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(until + 60))
    return (
        f"{int(until // 60) % 60} * * * * launch reconcile --adopt {instance} --after {after}"
        f" && crontab -l | grep -v {instance} | crontab -"
    )
