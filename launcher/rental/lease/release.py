"""The end of a rental: download the run's files, verify their hashes, terminate the machine.

The termination is complete once the provider no longer lists the machine. Foreground commands, the background
keeper, `launch reconcile` and batches share this module. A lease uses its run for two things: to ask whether
the run has ended, and to download its files.
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
from launcher.rental.lease.rental_lease import Lease, RentalView
from launcher.rental.records import ENDED_WITH_RUN, note_lost
from launcher.rental.renting import RentalReason
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import is_terminal

KEPT_LOOK_S = 300.0
"""How often, in seconds, the provider is asked whether a kept machine still exists."""
LIST_S = 30.0
"""The seconds reserved to list the files that are only on a machine, before it is terminated."""

Opening = Callable[[Host], HostClient]
"""A function that connects to a machine."""


class RentedRun(Protocol):
    """The run on a rented machine, with the calls that a lease needs."""

    def has_ended(self, opening: Opening) -> str | None:
        """Ask the machine for the run's state. Return it if the run has ended, and None if it continues.

        A run that does nothing more until the user types a command counts as ended. Raises NoRunError,
        HostError.
        """

    def download_files(self, lease: Lease, *, is_last: bool) -> None:
        """Download the run's files and verify each hash. A lost link is reopened a few times.

        Raises RunError or HostError if a file cannot be downloaded, after downloading all others.
        """

    def missing(self, opening: Opening) -> str:
        """Return a description of the files that are on the machine only. Empty if none are."""

    def forgo(self, opening: Opening) -> str | None:
        """Prevent a run that has not started from starting. Return the reason to end the rental.

        Return None if the run has started or its machine is kept. Raises HostError.
        """

    @property
    def is_known(self) -> bool:
        """Whether any file of the run was downloaded, which proves that it started."""

    @property
    def is_stopped_by_limit(self) -> bool:
        """Whether the local copy shows that the run was stopped by its machine's limit."""


def end_rent(
    lease: Lease, run: RentedRun, view: RentalView, state: str | None = None, *, is_last: bool = False
) -> bool:
    """Download an ended run and end its rental. Return whether the machine stays rented.

    It stays rented if the run continues or the machine is kept. Without a `state` the machine is asked for
    it. If the time is up, or with `is_last`, the rental ends in any case, and files that cannot be downloaded
    are reported and recorded. Otherwise a failed download is left to a background process; in that process
    RunError is raised. Raises NoRunError, HostError.
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
        run.download_files(lease, is_last=False)
    except ServiceError:
        raise  # the rental is over
    except (HostError, RunError) as error:
        words = f"{lease.host.name}: its machine is not terminated, because files are missing here: {str(error).splitlines()[0]}"
        if lease.is_keeper:
            raise RunError(words) from error  # the keeper tries again
        view.note(f"{words}   to lose the rest   launch reconcile --adopt {lease.rental.instance} --force")
        view.note(_leave_to_keeper(lease))
        return True
    lease.is_home = True
    if lease.is_left_alone_until(lambda: lease.is_due or not lease.is_left_by_run):
        is_cut_short = lease.is_due and (lease.record.keeps or not is_terminal(state))
        is_at_limit = run.is_stopped_by_limit or is_cut_short
        lease.end(RentalReason.LIMIT if is_at_limit else f"{ENDED_WITH_RUN}{state}", view)
    return lease.rental.is_open


def _end_at_limit(lease: Lease, run: RentedRun, view: RentalView) -> None:
    """End a rental whose time is up. Before that, download as many files as the time allows."""
    try:
        run.download_files(lease, is_last=True)
    except Exception as error:  # noqa: BLE001 - a bug too: the rental ends now
        lease.extend_download(LIST_S)
        if lost := run.missing(lease.opening):
            words = f"not everything was downloaded before the end of the rental: {lost}"
            why = (
                "its time was up" if lease.is_past else (str(error).splitlines() or [type(error).__name__])[0]
            )
            note_lost(lease.nonce, words)
            with contextlib.suppress(OSError):  # e.g. from a log on a full disk
                view.note(f"{lease.record.run}: {words} ({why})")
    lease.end(RentalReason.LIMIT, view)


def _keep(lease: Lease, view: RentalView) -> bool:
    """Leave a kept machine to a background process until its limit. In that process, wait and return True.

    False means that this process must not terminate the machine: the background process manages the machine,
    the machine is gone, or another run uses it.
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
    view.note(f"{words}; process {keeper.pid} terminates it then   {keeper.log}   {ends}")
    view.note(cron)
    return False


def _leave_to_keeper(lease: Lease) -> str:
    """Leave a rental to a background process. Return the message about that. Raises ServiceError."""
    cost, price, until = lease.cost, lease.price, lease.until
    what = (
        "to terminate its machine"
        if lease.is_home
        else "to download the missing files and terminate the machine"
    )
    keeper = hand_over(lease)
    return (
        f"process {keeper.pid} keeps trying {what}, and after {until} terminates it in any case: "
        f"{cost} so far, {price}   {keeper.log}"
    )


def hand_off(lease: Lease, view: RentalView) -> None:
    """Leave a rental to a background process.

    Report the process, and a way to end the rental from another machine.
    """
    cost = f"{lease.cost} so far, {lease.price}"
    if lease.is_keeper:  # the keeper was asked to exit: this computer may be shutting down
        view.note(f"no process manages the rental now; {cost}   launch attach {lease.record.short}")
        lease.release()
        return
    is_home, cron, until = lease.is_home, lease.cron_note, lease.until
    keeper = hand_over(lease)
    if is_home:
        view.note(f"all of its files are here; process {keeper.pid} ends the rental: {cost}   {keeper.log}")
        return
    view.note(
        f"process {keeper.pid} downloads its files, then terminates the machine: {cost}, at most until {until}   {keeper.log}"
    )
    view.note(cron)


@contextlib.contextmanager
def ensure_release(lease: Lease | None, view: RentalView) -> Iterator[None]:
    """Leave the rental to a background process if the block fails, e.g. on a full disk or by a bug.

    The background process tries again. Without an accepted key it could do nothing, so only the cost is
    reported. The same happens if no process can be started.
    """
    try:
        yield
    except Exception as error:  # bugs too
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


def end_named(lease: Lease, run: RentedRun, view: RentalView, *, is_due: bool) -> None:
    """Download the files of a machine that the user named for termination.

    Raises RunError if its run continues or a file cannot be downloaded; the machine then stays managed as
    before. With `is_due` such a failure is only reported.
    """
    name = lease.record.run
    try:
        try:
            state = run.has_ended(lease.opening)
            if state is None and not lease.is_due:
                raise RunError(f"its run continues   launch stop {lease.record.short}")
            run.download_files(lease, is_last=False)
        except UnreachableError as error:
            lease.watch(view, error)
            raise
    except ServiceError as error:
        view.note(str(error))  # the machine is gone
    except NoRunError:
        return  # no files to download
    except (HostError, LaunchError) as error:
        words = f"{name}: {'files are missing here' if is_due else 'its machine is not terminated'}: {str(error).splitlines()[0]}"
        if is_due:
            view.note(words)
            return
        instance = lease.rental.instance
        hand_over(lease)
        raise RunError(f"{words}\n  {lose_words(instance)}") from error
    finally:
        lease.release()


def lose_words(instance: str | None) -> str:
    """Return the command that terminates a machine at once."""
    return f"terminate it now and lose the files that are only on it   launch reconcile --adopt {instance} --force"
