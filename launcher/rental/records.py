"""The rentals of this user as commands use them: which machine is for a run, who looks after it, and what it has cost.

The ledger says what is rented. Beside it lies the record of each rental, which says how one logs in and whose run it is for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError, field_serializer, field_validator

from launcher.agent.record.files import read_json, write_durably
from launcher.base.text import printable
from launcher.errors import BadFileError
from launcher.rental.ledger import RentalLedger, usual_folder
from launcher.rental.provider import FIRST, PROVIDERS, module_of
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import ELSEWHERE, NAMED, Rental, RentalReason, RentalState, dollars, run_cents
from launcher.rental.service_clock import clock_of
from launcher.values.base import Record
from launcher.values.host import Host
from launcher.values.reported.checkpoint import MANIFEST

RECORD = "tenancy.json"
KNOWN_HOSTS = "known_hosts"
SERVICES = "services"
SETUP_LOG, KEEPER_LOG = "setup.log", "keeper.log"
DOWNLOADING = "bringing"
"""The file that says until when the process that looks after a machine brings its files home."""
LOST = "lost"
"""The file that says what a machine had that did not come home before its end."""
ENDING_S = 120.0
"""So long after that time it may still be ending the machine."""
ENDED_WITH_RUN = "the run has ended: "
"""So begins the reason of a rent that was ended because its run had."""
NO_CHECKPOINT = "no checkpoint that launcher can go on from is here; from its start"


class RentalRecord(Record):
    """A rented machine for a run, as a later command needs it.

    `machine` is the plain host that the run is kept on, `runs` the folder of the client's mirrors.
    """

    run: str
    nonce: str
    machine: Host
    settings: RentalSettings
    runs: str

    @field_validator("settings", mode="before")
    @classmethod
    def _of_their_provider(cls, written: Any) -> Any:
        if isinstance(written, RentalSettings):
            return written
        if not isinstance(written, dict):
            raise ValueError("expected a table")  # noqa: TRY004 - pydantic's own error, not a bug of ours
        values = {"provider": FIRST, **written}
        if (provider := str(values.pop("provider"))) not in PROVIDERS:
            raise ValueError(f"no provider {provider} is known")
        return module_of(provider).SETTINGS.model_validate(values)

    @field_serializer("settings")
    def _with_their_provider(self, settings: RentalSettings) -> dict[str, object]:
        named = {} if settings.provider == FIRST else {"provider": settings.provider}
        return {**named, **settings.model_dump(mode="json")}

    @property
    def keeps(self) -> bool:
        """Whether the rent goes on when the run has ended."""
        return self.settings.keep

    @property
    def short(self) -> str:
        """The last part of the run's id, as people type it."""
        return self.run.rpartition("-")[2]

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint of launcher's that its run saved is here: from one of a script's own no run can go on."""
        return any(Path(self.runs, self.run, "checkpoints").glob(f"*/{MANIFEST}"))


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


class RentedMachine(NamedTuple):
    """A rental and its record."""

    rental: Rental
    record: RentalRecord

    @property
    def runs(self) -> tuple[str, str]:
        """The run that it was rented for, and the one that it is for: another one may have taken over the machine."""
        return self.rental.intent.run, self.record.run

    @property
    def is_held(self) -> bool:
        """Whether a living process here looks after it."""
        return ledger().is_held(self.rental.nonce)

    @property
    def is_gone(self) -> bool:
        """True once the end is confirmed. A dismissed rental is never confirmed."""
        return not self.rental.is_open and self.rental.state is not RentalState.DISMISSED

    @property
    def lost(self) -> str:
        """What did not come home before its end; empty if all did."""
        try:
            return printable((ledger().place(self.rental.nonce) / LOST).read_text().strip())
        except (OSError, ValueError):
            return ""

    def cost(self, rentals: Sequence[Rental]) -> RentCost:
        """Return what all machines of its run have cost until now, at most."""
        now = clock_of(self.rental.intent.provider).likely()
        cents = run_cents(rentals, self.rental.intent.run, now)
        if not self.rental.is_open:
            return RentCost(cents, lost=self.lost)
        return RentCost(cents, self.rental.price, ledger().is_attended(self.rental.nonce))

    def why_gone(self, rentals: Sequence[Rental]) -> str:
        """Return why it is rented no more, what it cost, and what was lost with it."""
        cost = dollars(run_cents(rentals, self.rental.intent.run, self.rental.ended or self.rental.since))
        return "; ".join(filter(None, (_fate(self.rental), f"it cost at most {cost}", self.lost)))


class GoneMachine(NamedTuple):
    """What became of a machine that is rented no more, in one line, and when that was."""

    words: str
    ended: float | None


def ledger() -> RentalLedger:
    """Return this user's ledger."""
    return RentalLedger(usual_folder())


def write(record: RentalRecord) -> None:
    """Put a record on the disk. Raises OSError."""
    write_durably(str(ledger().place(record.nonce) / RECORD), f"{record.model_dump_json()}\n")


def remember_service(settings: RentalSettings) -> None:
    """Note that something may be rented at a service, so that a later command looks there. Raises OSError."""
    known = [one.api for one in accounts_at(settings.provider)]
    if settings.api not in known:
        usual_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = "".join(f"{one}\n" for one in [*known, settings.api])
        write_durably(str(_services(settings.provider)), lines)


def accounts() -> list[RentalSettings]:
    """Return the accounts at which this user has rented, by their services' addresses. Raises BadFileError for a damaged file."""
    return [one for provider in PROVIDERS for one in accounts_at(provider)]


def accounts_at(provider: str) -> list[RentalSettings]:
    """Return those of one provider. Raises BadFileError for a damaged file."""
    path = _services(provider)
    try:
        return [module_of(provider).SETTINGS.model_validate({"api": one}) for one in path.read_text().split()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        raise BadFileError(
            f"{path}: the addresses of the services where something is rented cannot be read\n"
            f"  write them there, one a line; usually   {module_of(provider).SETTINGS.model_fields['api'].default}"
        ) from None


def _services(provider: str) -> Path:
    """Return the file of a provider's addresses: a launcher that knows one provider alone reads the first one's, and no other."""
    return usual_folder() / (SERVICES if provider == FIRST else f"{SERVICES}-{provider}")


def rented() -> Iterator[RentedMachine]:
    """Yield the rentals that have a record, the oldest first."""
    if not usual_folder().is_dir():
        return
    book = ledger()
    for rental in book.rentals():
        if (record := _read(book, rental)) is not None:
            yield RentedMachine(rental, record)


def rented_for(run: str) -> RentedMachine | None:
    """Return the newest rental that was for a run, over or not; None if its machine was not rented here."""
    return next((one for one in reversed([*rented()]) if run in one.runs), None)


def open_for(run: str) -> RentedMachine | None:
    """Return the machine that is rented for a run just now; None if there is none, or another run has taken it over."""
    found = rented_for(run)
    return found if found is not None and found.rental.is_open and found.record.run == run else None


def abandoned(runs: Collection[str], provider: str | None = None) -> set[str]:
    """Return the nonces of open rentals for some runs on which nothing ever began, and which no process looks after.

    With `provider` those alone that are there.
    """
    book = ledger()
    own = (one for one in book.rentals() if one.is_open and one.intent.run in runs)
    own = (one for one in own if provider in (None, one.intent.provider))
    return {
        one.nonce
        for one in own
        if not (book.place(one.nonce) / RECORD).exists() and not book.is_held(one.nonce)
    }


def is_rented(machine: Host) -> bool:
    """Whether a machine was rented here."""
    return any(one.record.machine == machine for one in rented())


def ends_with(run: str) -> bool:
    """Whether a run is on a rented machine that is given back once the run has ended: nothing stays there."""
    found = open_for(run)
    return found is not None and not found.record.keeps


def is_looked_after(run: str) -> bool:
    """Whether a process on this machine looks after the rented machine of a run, to give it back with the run's end."""
    found = open_for(run)
    return found is not None and not found.record.keeps and ledger().is_attended(found.rental.nonce)


def rents_at(run: str) -> str | None:
    """Return the account at which a run had a machine that is given back with its end; None if it had none, or keeps it."""
    found = rented_for(run)
    if found is None or (found.rental.is_open and found.record.keeps):
        return None
    return found.record.machine.name


def rent_costs() -> dict[str, RentCost]:
    """Return what the machines of all runs that had a rented one have cost until now, by the run."""
    newest = {run: one for one in rented() for run in one.runs}
    if not newest:
        return {}
    rentals = ledger().rentals()
    return {run: one.cost(rentals) for run, one in newest.items()}


def rent_cost(run: str) -> RentCost | None:
    """Return what the machines of a run have cost until now; None if it had no rented one."""
    found = rented_for(run)
    return None if found is None else found.cost(ledger().rentals())


def is_gone(run: str) -> bool:
    """Whether a run had a rented machine, which is known to be rented no more."""
    found = rented_for(run)
    return found is not None and found.is_gone


def gone_machines() -> dict[str, GoneMachine]:
    """Return what became of the machines that are rented no more, by the run that they were for."""
    newest, rentals = {run: one for one in rented() for run in one.runs}, ledger().rentals()
    return {
        run: GoneMachine(one.why_gone(rentals), one.rental.ended)
        for run, one in newest.items()
        if one.is_gone
    }


@contextlib.contextmanager
def moving(run: str) -> Iterator[None]:
    """Have the rented machine of a run stay for the block, though the run ends there: what goes on elsewhere comes from it."""
    found = open_for(run)
    lock = None
    if found is not None:
        with contextlib.suppress(OSError):  # then it may go, and what goes on is what is here
            lock = ledger().take_for_move(found.rental.nonce)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def note_downloading(nonce: str, until: float) -> None:
    """Tell other commands until when files come home. Without that, on a full disk, they may end the machine before."""
    with contextlib.suppress(OSError):
        write_durably(str(ledger().place(nonce) / DOWNLOADING), f"{until}\n")


def is_downloading(nonce: str, now: float) -> bool:
    """Whether the process that looks after a machine is to bring its files home just now, by its own note."""
    try:
        return now < float((ledger().place(nonce) / DOWNLOADING).read_text()) + ENDING_S
    except (OSError, ValueError):
        return False


def note_lost(nonce: str, words: str) -> None:
    """Record what has not come home from a machine, for all who ask later. A disk that refuses changes nothing."""
    with contextlib.suppress(OSError):
        write_durably(str(ledger().place(nonce) / LOST), f"{words}\n")


def damage(book: RentalLedger, rental: Rental) -> str | None:
    """Return why nobody knows here whether a rental's run still needs it; None if it is known."""
    path = book.place(rental.nonce) / RECORD
    if not path.exists():
        return None  # it was not rented for long enough to have a run
    record = _read(book, rental)
    if record is None:
        return f"{path} cannot be read"
    return None if Path(record.runs).is_dir() else f"{record.runs}, the folder of its run, is not there"


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


def _read(book: RentalLedger, rental: Rental) -> RentalRecord | None:
    try:
        values = read_json(str(book.place(rental.nonce) / RECORD))
        return RentalRecord.model_validate(values) if values else None
    except (OSError, ValidationError):
        return None
