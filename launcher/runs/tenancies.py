"""The rentals of this user as commands use them: which one is for a run, who looks after it, and what it has cost.

The ledger says what is rented; beside it lies a rental's tenancy, which says how one logs in and where the run's mirror is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from launcher.errors import BadFileError
from launcher.rental.ledger import Ledger, usual_folder
from launcher.rental.service_clock import ServiceClock
from launcher.runs import index
from launcher.runs.json_file import read_json
from launcher.runs.mirror import Mirror
from launcher.runs.runs_folder import make_runs_folder
from launcher.runs.whole_file import write_durably
from launcher.values.checkpoint import MANIFEST
from launcher.values.lambda_settings import API, LambdaSettings
from launcher.values.record import is_terminal
from launcher.values.renting import ELSEWHERE, NAMED, Rental, RentalReason, RentalState, dollars, run_cents
from launcher.values.tenancy import Tenancy
from launcher.values.text import printable

if TYPE_CHECKING:
    from launcher.values.host import Host

TENANCY = "tenancy.json"
KNOWN_HOSTS = "known_hosts"
SERVICES = "services"
SETUP_LOG, KEEPER_LOG = "setup.log", "keeper.log"
BRINGING = "bringing"
"""The file that says until when the process that looks after a machine brings its files home."""
LOST = "lost"
"""The file that says what a machine had that did not come home before its end."""
ENDING_S = 120.0
"""So long after that time it may still be ending the machine."""
ENDED_WITH_RUN = "the run has ended: "
"""So begins the reason of a rent that was ended because its run had."""
NO_CHECKPOINT = "no checkpoint that launcher can go on from is here; from its start"


class RentedMachine(NamedTuple):
    """A rental and its tenancy."""

    rental: Rental
    tenancy: Tenancy

    @property
    def runs(self) -> tuple[str, str]:
        """The run that it was rented for, and the one that it is for: another one may have taken over the machine."""
        return self.rental.intent.run, self.tenancy.run

    @property
    def is_held(self) -> bool:
        """Whether a living process here looks after it."""
        return ledger().is_held(self.rental.nonce)

    @property
    def is_attended(self) -> bool:
        """Whether one does that can end its rent: the account takes its key."""
        return ledger().is_attended(self.rental.nonce)

    @property
    def is_gone(self) -> bool:
        """Whether it is known that the machine is rented no more. Of one that was dismissed that is not known."""
        return not self.rental.is_open and self.rental.state is not RentalState.DISMISSED

    @property
    def price(self) -> str:
        """What an hour costs."""
        return f"{dollars(self.rental.intent.cents_per_hour)}/h"


class RentCost(NamedTuple):
    """What the machines of a run have cost until now, at most, in cents; `price` is what an hour costs while one is rented.

    `is_held`: a process here looks after that one, and can end it. `lost` says what did not come home.
    """

    cents: int
    price: str | None = None
    is_held: bool = False
    lost: str = ""

    @property
    def words(self) -> str:
        """Say it in a few words."""
        return (
            f"{dollars(self.cents)} so far, {self.price}" if self.price else f"{dollars(self.cents)} at most"
        )


class GoneMachine(NamedTuple):
    """What became of a machine that is rented no more, in one line, and when that was."""

    words: str
    ended: float | None


def ledger() -> Ledger:
    """Return this user's ledger."""
    return Ledger(usual_folder())


def write(place: Path, tenancy: Tenancy) -> None:
    """Put a tenancy on the disk, and the folder of its run: one that is not there later was moved away. Raises OSError."""
    make_runs_folder(Path(tenancy.runs))
    write_durably(place / TENANCY, f"{tenancy.model_dump_json()}\n".encode())


def remember_service(api: str) -> None:
    """Note that something may be rented at a service, so that a later command looks there. Raises OSError."""
    if api not in services():
        write_durably(usual_folder() / SERVICES, "".join(f"{one}\n" for one in [*services(), api]).encode())


def services() -> list[str]:
    """Return the addresses of the services at which this user has rented. Raises BadFileError for a damaged file."""
    path = usual_folder() / SERVICES
    try:
        found = path.read_text().split()
        return [LambdaSettings(api=one).api for one in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        raise BadFileError(
            f"{path}: the addresses of the services where something is rented cannot be read\n"
            f"  write them there, one a line; usually   {API}"
        ) from None


def rented() -> Iterator[RentedMachine]:
    """Yield the rentals that have a tenancy, the oldest first."""
    book = ledger()
    for rental in book.rentals():
        if (tenancy := _read(book, rental)) is not None:
            yield RentedMachine(rental, tenancy)


def rented_for(run: str) -> RentedMachine | None:
    """Return the newest rental that was for a run, over or not; None if its machine was not rented here."""
    if not usual_folder().is_dir():
        return None
    return next((one for one in reversed([*rented()]) if run in one.runs), None)


def abandoned(runs: Collection[str]) -> set[str]:
    """Return the nonces of open rentals for some runs on which nothing ever began, and which no process looks after."""
    if not usual_folder().is_dir():
        return set()
    book = ledger()
    own = (one for one in book.rentals() if one.is_open and one.intent.run in runs)
    return {
        one.nonce
        for one in own
        if not (book.place(one.nonce) / TENANCY).exists() and not book.is_held(one.nonce)
    }


def unattended(runs: Collection[str]) -> list[Mirror]:
    """Return those of some runs whose machine is rented though no process looks after it."""
    if not usual_folder().is_dir():
        return []
    own = (one for one in rented() if one.rental.is_open and one.tenancy.run in runs and not one.is_held)
    return [mirror for one in own if (mirror := mirror_of(one.tenancy)) is not None]


def is_rented(machine: Host) -> bool:
    """Whether a machine was rented here."""
    return usual_folder().is_dir() and any(one.tenancy.machine == machine for one in rented())


def open_for(mirror: Mirror) -> RentedMachine | None:
    """Return the machine that is rented for a run just now; None if there is none, or another run has taken it over."""
    found = rented_for(mirror.run)
    return found if found is not None and found.rental.is_open and found.tenancy.run == mirror.run else None


def still_rented(mirror: Mirror) -> str | None:
    """Return what a run's machine has cost that is still rented, and the command that ends it; None if none is."""
    found, cost = open_for(mirror), rent_cost(mirror)
    if found is None or cost is None or found.rental.instance is None:
        return None
    loses = "" if mirror.is_freed else " --force"
    what = "to end it" if mirror.is_freed else "to end it, and lose what is only there"
    return f"its machine is still rented: {cost.words}; {what}   launch reconcile --adopt {found.rental.instance}{loses}"


def is_ending(mirror: Mirror) -> bool:
    """Whether a run has ended, and its rented machine just goes back: it does not answer any more."""
    found, state = rented_for(mirror.run), mirror.state()
    is_over = state is not None and is_terminal(state.state)
    return is_over and found is not None and found.rental.state is RentalState.ENDING


def ends_with(mirror: Mirror) -> bool:
    """Whether a run is on a rented machine that is given back once the run has ended: nothing stays there."""
    found = open_for(mirror)
    return found is not None and not found.tenancy.keeps


def is_looked_after(mirror: Mirror) -> bool:
    """Whether a process on this machine looks after the rented machine of a run, to give it back with the run's end."""
    found = open_for(mirror)
    return found is not None and not found.tenancy.keeps and found.is_attended


def rents_at(mirror: Mirror) -> str | None:
    """Return the account at which a run had a machine that is given back with its end; None if it had none, or keeps it."""
    found = rented_for(mirror.run)
    if found is None or (found.rental.is_open and found.tenancy.keeps):
        return None
    return found.tenancy.machine.name


def rent_costs() -> dict[str, RentCost]:
    """Return what the machines of all runs that had a rented one have cost until now, by the run."""
    if not usual_folder().is_dir():
        return {}
    rentals, now = ledger().rentals(), ServiceClock().likely()
    return {run: _cost(one, rentals, now) for one in rented() for run in one.runs}


def rent_cost(mirror: Mirror) -> RentCost | None:
    """Return what the machines of a run have cost until now; None if it had no rented one."""
    found = rented_for(mirror.run)
    return None if found is None else _cost(found, ledger().rentals(), ServiceClock().likely())


def _cost(found: RentedMachine, rentals: Sequence[Rental], now: float) -> RentCost:
    cents = run_cents(rentals, found.rental.intent.run, now)
    if not found.rental.is_open:
        return RentCost(cents, lost=_lost(found.rental))
    return RentCost(cents, found.price, found.is_attended)


def has_checkpoint(mirror: Mirror) -> bool:
    """Whether a checkpoint of launcher's that a run saved is here: from one of a script's own no run can go on."""
    return any(
        mirror.files.is_file(f"checkpoints/{name}/{MANIFEST}") for name in mirror.files.names("checkpoints")
    )


def is_gone(mirror: Mirror) -> bool:
    """Whether a run had a rented machine, which is known to be rented no more."""
    found = rented_for(mirror.run)
    return found is not None and found.is_gone


def gone_machines() -> dict[str, GoneMachine]:
    """Return what became of the machines that are rented no more, by the run that they were for."""
    if not usual_folder().is_dir():
        return {}
    newest, rentals = {run: one for one in rented() for run in one.runs}, ledger().rentals()
    return {
        run: GoneMachine(why_gone(one, rentals), one.rental.ended)
        for run, one in newest.items()
        if one.is_gone
    }


def why_gone(found: RentedMachine, rentals: Sequence[Rental]) -> str:
    """Return why a machine is rented no more, what it cost, and what was lost with it."""
    rental = found.rental
    cost = dollars(run_cents(rentals, rental.intent.run, rental.ended or rental.since))
    lost = _lost(rental)
    return f"{_fate(rental)}; it cost at most {cost}{f'; {lost}' if lost else ''}"


@contextlib.contextmanager
def moving(mirror: Mirror) -> Iterator[None]:
    """Have the rented machine of a run stay for the block, though the run ends there: what goes on elsewhere comes from it."""
    found = open_for(mirror)
    lock = None
    if found is not None:
        with contextlib.suppress(OSError):  # then it may go, and what goes on is what is here
            lock = ledger().take_for_move(found.rental.nonce)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def is_bringing(nonce: str, now: float) -> bool:
    """Whether the process that looks after a machine is to bring its files home just now, by its own note."""
    try:
        return now < float((ledger().place(nonce) / BRINGING).read_text()) + ENDING_S
    except (OSError, ValueError):
        return False


def note_lost(nonce: str, words: str) -> None:
    """Record what has not come home from a machine, for all who ask later. A disk that refuses changes nothing."""
    with contextlib.suppress(OSError):
        write_durably(ledger().place(nonce) / LOST, f"{words}\n".encode())


def lost(mirror: Mirror) -> str:
    """Return what a run had on its rented machine that did not come home before its end; empty if all did."""
    found = rented_for(mirror.run)
    return "" if found is None else _lost(found.rental)


def _lost(rental: Rental) -> str:
    try:
        return printable((ledger().place(rental.nonce) / LOST).read_text().strip())
    except (OSError, ValueError):
        return ""


def _fate(rental: Rental) -> str:
    """Return what became of a machine that is rented no more."""
    why = rental.why or ""
    if why.startswith(ENDED_WITH_RUN):
        return "its rented machine was given back after the run's end"
    known: dict[str, str] = {
        RentalReason.GONE: ELSEWHERE,
        NAMED: "it was ended by you, with launch reconcile --adopt",
        RentalReason.LIMIT: "it was ended at its limit",
        RentalReason.PREEMPTED: "the provider has taken it away",
    }
    return f"its rented machine is gone: {known.get(why, why or 'it was ended')}"


def kept_idle(host_name: str) -> list[RentedMachine]:
    """Return the machines of a host that are kept though their runs have ended."""
    found = []
    for one in rented():
        mirror = mirror_of(one.tenancy) if one.tenancy.keeps and one.rental.is_open else None
        state = mirror.state() if mirror is not None else None
        if one.tenancy.machine.name == host_name and state is not None and is_terminal(state.state):
            found.append(one)
    return found


def kept_words(found: RentedMachine) -> str:
    """Return what is said of a kept machine where another one is rented."""
    run, mirror = found.tenancy.run, mirror_of(found.tenancy)
    short, state = run.rpartition("-")[2], mirror.state() if mirror is not None else None
    is_plain = state is not None and state.checkpoint is None
    use = (
        f"by hand there   launch exec {short} -- …"
        if is_plain
        else f"train on there   launch resume {short} --set steps=…"
    )
    use = "" if mirror is None or mirror.is_freed else f"   {use}  "
    return (
        f"{found.tenancy.machine.name}: the machine of {run} is kept, at {found.price}, and this rents another one"
        f"{use}   end it   launch reconcile --adopt {found.rental.instance}"
    )


def mirror_of(tenancy: Tenancy) -> Mirror | None:
    """Return the mirror of a rental's run; None if its folder is gone, or the run never began."""
    mirror = Mirror(tenancy.run, Path(tenancy.runs))
    return mirror if index.knows(tenancy.run) and mirror.files.is_folder() else None


def damage(book: Ledger, rental: Rental) -> str | None:
    """Return why nobody knows here whether a rental's run still needs it; None if it is known."""
    path = book.place(rental.nonce) / TENANCY
    if not path.exists():
        return None  # it was not rented for long enough to have a run
    tenancy = _read(book, rental)
    if tenancy is None:
        return f"{path} cannot be read"
    return None if Path(tenancy.runs).is_dir() else f"{tenancy.runs}, the folder of its run, is not there"


def _read(book: Ledger, rental: Rental) -> Tenancy | None:
    values = read_json(book.place(rental.nonce) / TENANCY)
    try:
        return Tenancy.model_validate(values) if values else None
    except ValidationError:
        return None
