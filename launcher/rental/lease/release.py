"""The end of a rent: what the run made comes home and is proven by its hash, then the machine is ended, then listed until gone.

It is the same for who follows the run, the keeper in the background, `launch reconcile` and a batch. Of the run a lease is
given only whether it has ended, and how what it made is brought home.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from launcher.errors import (
    HostError,
    LaunchError,
    NoRunError,
    RunError,
    ServiceAuthError,
    ServiceError,
    UnreachableError,
)
from launcher.rental.lease.handoff import hand_over
from launcher.rental.lease.rental_lease import Lease, Teller
from launcher.rental.records import ENDED_WITH_RUN, note_lost
from launcher.rental.renting import RentalReason
from launcher.transport.client.desk import HostClient
from launcher.values.host import Host
from launcher.values.record import is_terminal

KEPT_LOOK_S = 300.0
"""How often the provider is asked whether a machine that is kept is still there."""
LIST_S = 30.0
"""So long a machine is asked for what has not come home before it is ended."""

Opening = Callable[[Host], HostClient]
"""A way to the desk of a machine."""


class RentedRun(Protocol):
    """The run on a rented machine, as far as a lease needs it."""

    def has_ended(self, opening: Opening) -> str | None:
        """Ask its machine, and return the state of a run on which nothing more happens by itself; None if it goes on.

        Raises NoRunError, HostError.
        """

    def bring_home(self, lease: Lease, *, is_last: bool) -> None:
        """Bring home what it made, each file proven by its hash. A lost link is opened again a few times.

        Raises RunError if something does not come, and HostError; what can come has come then.
        """

    def missing(self, opening: Opening) -> str:
        """Ask its machine which of its files are not here, and return that in words; empty if all are."""

    def forgo(self, opening: Opening) -> str | None:
        """Have its machine never begin it; return why the rent can end then, None if it has begun, or is kept. Raises HostError."""

    @property
    def is_known(self) -> bool:
        """Whether anything of it has come here: then it has begun."""

    @property
    def is_stopped_by_limit(self) -> bool:
        """Whether it was stopped because its machine's time is up, by what is known here."""


def end_rent(
    lease: Lease, run: RentedRun, view: Teller, state: str | None = None, *, is_last: bool = False
) -> bool:
    """Bring a run home that is over, and end its rent; return whether its machine is rented on, since it goes on or is kept.

    Without a `state` its machine is asked for it. If its time is up, or this is the last try, the rent ends all the same, and
    what cannot come is said and recorded. Else a process in the background goes on trying; in that process RunError is raised.
    Raises NoRunError, HostError.
    """
    if is_last or lease.is_past:
        _end_at_limit(lease, run, view)
        return False
    if state is None:
        try:
            state = run.has_ended(lease.opening)
        except UnreachableError as error:
            lease.watch(view, error)
            raise
        except NoRunError:
            why = run.forgo(lease.opening)
            if why is None:
                raise
            lease.end(why, view)
            return False
        if state is None:
            return True
    if lease.record.keeps and not lease.is_due and not _keep(lease, view):
        return lease.rental.is_open
    try:
        run.bring_home(lease, is_last=False)
    except ServiceError:
        raise  # the rent is over
    except (HostError, RunError) as error:
        words = f"{lease.host.name}: its machine is not ended, since not all is here: {str(error).splitlines()[0]}"
        if lease.is_keeper:
            raise RunError(words) from error  # it tries again
        view.note(f"{words}   to lose the rest   launch reconcile --adopt {lease.rental.instance} --force")
        view.note(_leave_to_keeper(lease))
        return True
    lease.is_home = True
    if lease.is_left_alone_until(lambda: lease.is_due or not lease.is_left_by_run):
        is_cut_short = lease.is_due and (lease.record.keeps or not is_terminal(state))
        is_at_limit = run.is_stopped_by_limit or is_cut_short
        lease.end(RentalReason.LIMIT if is_at_limit else f"{ENDED_WITH_RUN}{state}", view)
    return lease.rental.is_open


def _end_at_limit(lease: Lease, run: RentedRun, view: Teller) -> None:
    """End a rent whose time is up; before that, bring home what there is, for as long as there is time for that."""
    try:
        run.bring_home(lease, is_last=True)
    except Exception as error:  # noqa: BLE001 - a bug too: the rent ends now
        lease.extend_download(LIST_S)
        if lost := run.missing(lease.opening):
            words = f"not all came home by the end of its machine's time: {lost}"
            why = (
                "its time was up" if lease.is_past else (str(error).splitlines() or [type(error).__name__])[0]
            )
            note_lost(lease.nonce, words)
            with contextlib.suppress(OSError):  # as of a log on a full disk
                view.note(f"{lease.record.run}: {words} ({why})")
    lease.end(RentalReason.LIMIT, view)


def _keep(lease: Lease, view: Teller) -> bool:
    """Leave a machine to a process in the background until its limit; in that process, return True once that is there.

    False means that the machine is not ours to end: it is left to that process, is gone, or is for another run.
    """
    if lease.is_keeper:
        while not lease.is_due:
            if not lease.is_left_alone_for(min(KEPT_LOOK_S, lease.due_s)):
                return False
            lease.look(view)
        return True
    words = f"{lease.host.name}: its machine is kept, as its table says: {lease.cost} so far, {lease.price}, until its limit at {lease.until}"
    ends, cron = f"end it   launch reconcile --adopt {lease.rental.instance}", lease.cron_note
    keeper = hand_over(lease)
    view.note(f"{words}   {ends}; process {keeper.pid} does then   {keeper.log}")
    view.note(cron)
    return False


def _leave_to_keeper(lease: Lease) -> str:
    """Leave a rental to a process in the background; return what is said about it. Raises ServiceError."""
    cost, price, until = lease.cost, lease.price, lease.until
    what = "to end its machine" if lease.is_home else "to bring home what is missing, and to end its machine"
    keeper = hand_over(lease)
    return (
        f"process {keeper.pid} goes on trying {what}, at the latest after {until}: "
        f"{cost} so far, {price}   {keeper.log}"
    )


def hand_off(lease: Lease, view: Teller) -> None:
    """Leave a rental to a process in the background, and say which, and what would end the rent from another machine."""
    cost = f"{lease.cost} so far, {lease.price}"
    if lease.is_keeper:  # it was to end: the machine here may be going down
        view.note(f"nobody looks after the rental now; {cost}   launch attach {lease.record.short}")
        lease.release()
        return
    is_home, cron, until = lease.is_home, lease.cron_note, lease.until
    keeper = hand_over(lease)
    if is_home:
        view.note(f"all of its files are here; process {keeper.pid} ends the rent: {cost}   {keeper.log}")
        return
    view.note(
        f"process {keeper.pid} brings its files home, then ends the rent: {cost}, at most until {until}   {keeper.log}"
    )
    view.note(cron)


@contextlib.contextmanager
def ensure_release(lease: Lease | None, view: Teller) -> Iterator[None]:
    """Leave the rental to a process in the background if the block fails, as on a full disk or by a bug; it tries again.

    Without a key that would help nobody, and only the cost is said; so it is if no process can be started.
    """
    try:
        yield
    except Exception as error:  # a bug too
        if lease is None or lease.is_keeper or lease.is_released or not lease.rental.is_open:
            raise
        if isinstance(error, ServiceAuthError):
            if lease.still_rented not in str(error):
                view.note(lease.still_rented)
            lease.release()
        else:
            try:
                view.note(_leave_to_keeper(lease))
            except HostError as still_rented:
                view.note(str(still_rented))
        raise


def end_named(lease: Lease, run: RentedRun, view: Teller, *, is_due: bool) -> None:
    """Bring home what a machine has that the user has named to be ended now.

    Raises RunError if its run goes on, or not all comes: the machine is looked after as before then, unless it `is_due`.
    That is only said.
    """
    name = lease.record.run
    try:
        try:
            state = run.has_ended(lease.opening)
            if state is None and not lease.is_due:
                raise RunError(f"its run goes on   launch stop {lease.record.short}")
            run.bring_home(lease, is_last=False)
        except UnreachableError as error:
            lease.watch(view, error)
            raise
    except ServiceError as error:
        view.note(str(error))  # the machine is gone
    except NoRunError:
        return  # nothing can come home
    except (HostError, LaunchError) as error:
        words = f"{name}: {'not all is here' if is_due else 'its machine is not ended'}: {str(error).splitlines()[0]}"
        if is_due:
            view.note(words)
            return
        instance = lease.rental.instance
        hand_over(lease)
        raise RunError(f"{words}\n  {lose_words(instance)}") from error
    finally:
        lease.release()


def lose_words(instance: str | None) -> str:
    """Return what is typed to end a machine at once."""
    return f"end it now, and lose what is only there   launch reconcile --adopt {instance} --force"
