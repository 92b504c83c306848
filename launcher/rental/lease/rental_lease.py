"""A lease: this process looks after a rented machine, and ends the rent. How it begins and passes on is in handoff.py."""

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
from launcher.rental.lease.renter import Rented, Renter
from launcher.rental.provider import is_passing
from launcher.rental.records import (
    NO_CHECKPOINT,
    RentalRecord,
    note_downloading,
    write,
)
from launcher.rental.renting import Instance, Rental, RentalReason, minutes_text
from launcher.rental.verdict import GRACE_S, loss
from launcher.transport.client.desk import HostClient
from launcher.values.host import Host

LOOK_S = 1.0
LAST_S = 60.0
"""So long before its limit a machine is ended at the latest: its end takes a while, and so does asking for what is lost."""
YIELD_S = 10.0
"""How long a process that only keeps a machine has to give it up."""
OTHER_KEY = "other-key"
TAKEN = "taken"


class Step(Protocol):
    """A step that a person sees while it lasts; `text` is what is shown when it is done, None for nothing."""

    text: str | None

    def progress(self, step: str, /) -> None:
        """Show how far it has come."""


class Teller(Protocol):
    """What shows to a person what happens to a rent."""

    def note(self, text: str) -> None:
        """Say something."""

    def stage(self, name: str) -> AbstractContextManager[Step]:
        """Show a step while it lasts."""


class Lease:
    """This process's hold on a rented machine. Call `release`, or `hand_over` of handoff.py, once it is not needed."""

    def __init__(
        self, account: Renter, held: Rented, record: RentalRecord, *, is_keeper: bool = False
    ) -> None:
        """Look after a rental whose lock this process has; `is_keeper` if it was started for that, in the background."""
        self.renter, self.lock = account, held.lock
        self.is_keeper = is_keeper
        self.nonce, self.record = held.rental.nonce, record
        self._known = held.rental
        self._said: set[str] = set()
        self.is_released = False
        self.is_home = False
        """Whether all that its run made is here, so that only the machine is left to end."""
        self._download = DownloadDeadline(
            self._limits, account.clock, lambda until: note_downloading(self.nonce, until)
        )

    @property
    def host(self) -> Host:
        """The machine."""
        return self.record.machine

    @property
    def rental(self) -> Rental:
        """The rental as the ledger has it now, or as it was last known here."""
        self._known = self.renter.known(self._known)
        return self._known

    @property
    def cost(self) -> str:
        """What all machines of the run that it was rented for have cost until now, at most."""
        return self.renter.cost(self.rental)

    @property
    def price(self) -> str:
        """What an hour costs."""
        return self.rental.price

    def _limits(self) -> Limits:
        """Return when its run stops by itself, so that what it made is home at the limit, and when the machine is ended."""
        rental = self.rental
        home_s, deadline = rental.home_s, rental.intent.deadline
        return Limits(deadline - home_s, deadline - min(LAST_S, home_s / 10))

    @property
    def is_due(self) -> bool:
        """Whether what is left of its time is for bringing home."""
        return self._download.is_due

    @property
    def is_overdue(self) -> bool:
        """Whether half of that has passed: a run that has not stopped is left, and what it has made until now comes home."""
        return self.is_due and self.renter.clock.now() >= sum(self._limits()) / 2

    @property
    def is_past(self) -> bool:
        """Whether its time is all but up: it is ended, whether or not its files are home."""
        return self.left_s <= 0

    @property
    def left_s(self) -> float:
        """How many seconds are left until then."""
        return self._limits().ends - self.renter.clock.now()

    @property
    def due_s(self) -> float:
        """How many seconds its run may still go on; less than none once it `is_due`."""
        return self._limits().due - self.renter.clock.now()

    def opening(self, host: Host) -> HostClient:
        """Connect to its machine; once there is no more time to bring anything home the connection is cut.

        Raises HostError, and ServiceError `limit` after that.
        """
        if self._download.is_over:
            raise self.over(RentalReason.LIMIT, "its time was up")
        from launcher.transport import connecting  # few commands come here

        return self._download.guarded(connecting.connect(host))

    def guard(self, desk: HostClient | None) -> None:
        """Cut an open connection to its machine then too."""
        if desk is not None:
            self._download.guarded(desk)

    def extend_download(self, seconds: float) -> None:
        """Have so much more time, as for asking what has not come home."""
        self._download.extend(seconds)

    @property
    def still_rented(self) -> str:
        """What is said when this process ends, and the rent does not."""
        return f"{self.host.name}: its machine is still rented: {self.cost} so far, {self.price}   launch reconcile"

    @property
    def until(self) -> str:
        """When the rent is over at the latest, in this machine's time zone."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.rental.intent.deadline))

    @property
    def cron_note(self) -> str:
        """What is said of the end of the rent from another machine."""
        return f"in case this machine goes down, a line for crontab -e on another one that has the API key; it goes once the machine has gone:   {cron_line(self.rental)}"

    def take_in(self, run: str, runs: str) -> None:
        """Have the machine be for another run from now on, which is not on it yet; `runs` is the folder of its mirror.

        Raises RefusedError if that cannot be recorded; it is for the same run as before then.
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

    # while its run goes on

    def watch(self, view: Teller, error: UnreachableError | None = None) -> None:
        """Look whether the machine is still there, if its link is lost, and whether its time is up.

        Raises ServiceError, with what was paid, once the rent is over: the run goes no further on this machine. With the
        reason `limit` it has still to be ended.
        """
        self.renter.learn_time()
        self._check_hold()
        rental = self.rental
        if not rental.is_open:
            raise self.over(rental.why or RentalReason.GONE, "its rent was ended by another command")
        if self.is_overdue:
            raise self.over(RentalReason.LIMIT, "its time was up")
        if error is not None:
            self.look(view, is_silent=True)

    def _check_hold(self) -> None:
        """Raise ServiceError if another command has taken the machine, as it may while this process was stopped."""
        if self.lock.is_valid:
            return
        self._close()
        words = f"{self.record.run}: while this process was stopped another command began to look after its machine"
        raise ServiceError(
            self.host.name, TAKEN, f"{words}\n  to follow it   launch attach {self.record.short}"
        )

    def look(self, view: Teller, *, is_silent: bool = False) -> None:
        """Ask the provider whether a machine is still there that nobody uses, or that `is_silent`, which is said.

        Raises ServiceError, with what was paid, if it is gone. A provider that does not answer changes nothing.
        """
        try:
            found = self.renter.find(self.rental)
        except ServiceError as unanswered:
            if not is_passing(unanswered):
                raise
            return  # the network here may be down
        if (lost := loss(found)) is not None:
            self._end(lost.reason)
            raise self.over(*lost)
        if is_silent:
            self._tell_state(found, view)

    def _tell_state(self, instance: Instance | None, view: Teller) -> None:
        if instance is not None and not instance.is_ready and instance.word not in self._said:
            self._said.add(instance.word)
            view.note(
                f"{self.host.name}: the provider says that the machine is '{instance.word}'; {self.cost} so far, {self.price}"
                f"   end it   launch reconcile --adopt {instance.id} --force"
                f"   go on elsewhere   launch recover {self.record.short} --host {self.host.name} --abandon"
            )

    def over(self, reason: str, why: str) -> ServiceError:
        """Return the error that says why a run goes no further on this machine."""
        run, short, name = self.record.run, self.record.short, self.host.name
        words = f"{name}: {run}: {why}; it cost at most {self.cost}"
        if self.record.has_checkpoint:
            mend = f"from a checkpoint that is here   launch recover {short} --host {name}"
        else:
            mend = f"{NO_CHECKPOINT}   launch rerun {short} --host {name}"
        return ServiceError(name, reason, f"{words}\n  {mend}")

    def is_left_alone_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; return False as soon as the rent is over, or another command looks after the machine."""
        while not condition():
            if not self.lock.is_valid:
                self._close()
                return False
            if not self.rental.is_open or (self.renter.ledger.is_asked_for(self.nonce) and self._gives_up()):
                return False
            look_again_after(LOOK_S)
        return True

    def _gives_up(self) -> bool:
        """Let the command that asks for the machine have it; look after it again, and return False, if that has ended before."""
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
        """Do the same for so long."""
        clock = self.renter.clock
        until = clock.now() + seconds
        return self.is_left_alone_until(lambda: clock.now() >= until)

    def note_refused(self) -> None:
        """Let other commands know that the account refuses the key of this process. Raises OSError."""
        self.renter.ledger.note_refused(self.nonce)

    @property
    def is_left_by_run(self) -> bool:
        """Whether another command just moves its run to another host, and needs it for that."""
        return self.renter.ledger.is_left_by_run(self.nonce)

    # its end

    def end(self, why: str, view: Teller) -> None:
        """End the rent; return once the provider does not list the machine any more. Raises ServiceError if it still does."""
        try:
            self._end_as_stage(why, view)
        except OSError:  # of a terminal that was closed, or a log on a full disk: it is ended all the same
            self._end(why)
        forget_key(self.renter)

    def _end_as_stage(self, why: str, view: Teller) -> None:
        with view.stage("end") as stage:
            stage.progress(f"the rent of {self.host.name}'s machine")
            try:
                ended = self._end(why)
            except ServiceError as error:
                if error.reason == RentalReason.STILL_BILLED:
                    raise
                words = f"{error}\n  {self.still_rented}"
                raise type(error)(error.host, error.reason, words, error.retry_s) from error
            minutes = (ended.ended or self.renter.clock.now()) - ended.since
            stage.text = f"the machine is gone: {minutes_text(minutes / 60)}, at most {self.cost}"

    def give_up(self, view: Teller) -> None:
        """End the rent after the failure that is being handled, say what was paid, and look after it no more.

        If that fails too it is only said, since the first failure is raised. Raises ServiceError if the first one was an
        interrupt, or another one comes: who interrupts is not to believe that nothing is left.
        """
        try:
            if self.rental.is_open:
                self._give_up(view)
        finally:
            self.release()

    def _give_up(self, view: Teller) -> None:
        words, failure = self.still_rented, sys.exception()  # if it is interrupted
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
        """Look after it no more. Once is enough."""
        if not self.is_released:
            self.lock.release()
            self._close()

    def _close(self) -> None:
        self.is_released = True
        self._download.end()
        self.renter.close()


def cron_line(rental: Rental) -> str:
    """Return the line of a crontab that ends a rent, once it is over, from a machine without our ledger, and then removes itself."""
    instance, until = rental.instance, rental.intent.deadline + GRACE_S
    after = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(until + 60))
    return (
        f"{int(until // 60) % 60} * * * * launch reconcile --adopt {instance} --after {after}"
        f" && crontab -l | grep -v {instance} | crontab -"
    )
