"""This user's rentals, by run: the machine, its managing process and its cost.

The ledger stores the rentals. Each rental also has a record in its folder, with its login and its run.
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
"""The file with the time until which the managing process downloads a machine's files."""
LOST = "lost"
"""The file that lists a machine's files that were not downloaded before its end."""
ENDING_S = 120.0
"""The seconds after the end of downloads during which the termination may still be in progress."""
ENDED_WITH_RUN = "the run has ended: "
"""The start of the reason text for a rental terminated because its run had ended."""
NO_CHECKPOINT = "launcher has no checkpoint to continue from; start the run again"


class RentalRecord(Record):
    """A machine rented for a run, with the data that a later command needs.

    `machine` is the plain host of the run, `runs` the folder of the local copies.
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
            raise ValueError("expected a table")  # noqa: TRY004 - pydantic's own error, not a bug
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
        """Whether the machine stays rented after the run has ended."""
        return self.settings.keep

    @property
    def short(self) -> str:
        """The last part of the run's id, as users type it."""
        return self.run.rpartition("-")[2]

    @property
    def has_checkpoint(self) -> bool:
        """Whether a launcher checkpoint of its run has a local copy.

        A script's own checkpoints cannot be resumed from.
        """
        return any(Path(self.runs, self.run, "checkpoints").glob(f"*/{MANIFEST}"))


class RentCost(NamedTuple):
    """The maximum cost so far of a run's machines, in cents; `price` is the hourly price of an open rental.

    `is_held`: a process on this computer manages the open rental and can terminate it. `lost` lists the files
    that were not downloaded.
    """

    cents: int
    price: str | None = None
    is_held: bool = False
    lost: str = ""

    @property
    def words(self) -> str:
        """The cost in a few words."""
        return (
            f"{dollars(self.cents)} so far, {self.price}" if self.price else f"{dollars(self.cents)} at most"
        )


class RentedMachine(NamedTuple):
    """A rental and its record."""

    rental: Rental
    record: RentalRecord

    @property
    def runs(self) -> tuple[str, str]:
        """The run the machine was rented for, and the run that uses it now. They differ after a takeover."""
        return self.rental.intent.run, self.record.run

    @property
    def is_held(self) -> bool:
        """Whether a running process on this computer manages it."""
        return ledger().is_held(self.rental.nonce)

    @property
    def is_gone(self) -> bool:
        """True once the end is confirmed. A dismissed rental is never confirmed."""
        return not self.rental.is_open and self.rental.state is not RentalState.DISMISSED

    @property
    def lost(self) -> str:
        """The list of files not downloaded before the machine's end. Empty if nothing was lost."""
        try:
            return printable((ledger().place(self.rental.nonce) / LOST).read_text().strip())
        except (OSError, ValueError):
            return ""

    def cost(self, rentals: Sequence[Rental]) -> RentCost:
        """Return the maximum cost so far of all machines of its run."""
        now = clock_of(self.rental.intent.provider).likely()
        cents = run_cents(rentals, self.rental.intent.run, now)
        if not self.rental.is_open:
            return RentCost(cents, lost=self.lost)
        return RentCost(cents, self.rental.price, ledger().is_attended(self.rental.nonce))

    def why_gone(self, rentals: Sequence[Rental]) -> str:
        """Return why the rental ended, its cost, and its lost files."""
        cost = dollars(run_cents(rentals, self.rental.intent.run, self.rental.ended or self.rental.since))
        return "; ".join(filter(None, (_why_ended(self.rental), f"it cost at most {cost}", self.lost)))


class GoneMachine(NamedTuple):
    """Why a machine is no longer rented, in one line, and when it ended."""

    words: str
    ended: float | None


def ledger() -> RentalLedger:
    """Return this user's ledger."""
    return RentalLedger(usual_folder())


def write(record: RentalRecord) -> None:
    """Write a record to disk. Raises OSError."""
    write_durably(str(ledger().place(record.nonce) / RECORD), f"{record.model_dump_json()}\n")


def remember_service(settings: RentalSettings) -> None:
    """Record a service where the user may have rented, so that later commands check it. Raises OSError."""
    known = [one.api for one in accounts_at(settings.provider)]
    if settings.api not in known:
        usual_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = "".join(f"{one}\n" for one in [*known, settings.api])
        write_durably(str(_services(settings.provider)), lines)


def accounts() -> list[RentalSettings]:
    """Return the accounts, by service address, at which this user has rented.

    Raises BadFileError for a damaged file.
    """
    return [one for provider in PROVIDERS for one in accounts_at(provider)]


def accounts_at(provider: str) -> list[RentalSettings]:
    """Return the accounts of one provider. Raises BadFileError for a damaged file."""
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
    """Return the file with a provider's addresses.

    Older versions, which know one provider, read only the first provider's file.
    """
    return usual_folder() / (SERVICES if provider == FIRST else f"{SERVICES}-{provider}")


def rented() -> Iterator[RentedMachine]:
    """Yield the rentals that have a record, oldest first."""
    if not usual_folder().is_dir():
        return
    book = ledger()
    for rental in book.rentals():
        if (record := _read(book, rental)) is not None:
            yield RentedMachine(rental, record)


def rented_for(run: str) -> RentedMachine | None:
    """Return the newest rental of a run, open or ended, or None if its machine was not rented here."""
    return next((one for one in reversed([*rented()]) if run in one.runs), None)


def open_for(run: str) -> RentedMachine | None:
    """Return the machine now rented for a run. None if it has none, or if another run has taken it over."""
    found = rented_for(run)
    return found if found is not None and found.rental.is_open and found.record.run == run else None


def abandoned(runs: Collection[str], provider: str | None = None) -> set[str]:
    """Return the nonces of open rentals for some runs that never started and that no process manages.

    With `provider`, only the rentals at that provider.
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
    """Whether a machine was rented from this computer."""
    return any(one.record.machine == machine for one in rented())


def ends_with(run: str) -> bool:
    """Whether a run's rented machine is terminated when the run ends, so that nothing remains on it."""
    found = open_for(run)
    return found is not None and not found.record.keeps


def is_looked_after(run: str) -> bool:
    """Whether a process on this computer manages a run's rented machine and terminates it with the run."""
    found = open_for(run)
    return found is not None and not found.record.keeps and ledger().is_attended(found.rental.nonce)


def rents_at(run: str) -> str | None:
    """Return the account of a run's machine that is terminated with the run.

    None if the run had no rented machine, or if the machine is kept.
    """
    found = rented_for(run)
    if found is None or (found.rental.is_open and found.record.keeps):
        return None
    return found.record.machine.name


def rent_costs() -> dict[str, RentCost]:
    """Return the cost so far of the rented machines, by run. Runs without a rental are left out."""
    newest = {run: one for one in rented() for run in one.runs}
    if not newest:
        return {}
    rentals = ledger().rentals()
    return {run: one.cost(rentals) for run, one in newest.items()}


def rent_cost(run: str) -> RentCost | None:
    """Return the cost so far of a run's machines, or None if it had no rented one."""
    found = rented_for(run)
    return None if found is None else found.cost(ledger().rentals())


def is_gone(run: str) -> bool:
    """Whether a run had a rented machine whose end is confirmed."""
    found = rented_for(run)
    return found is not None and found.is_gone


def gone_machines() -> dict[str, GoneMachine]:
    """Return why and when each ended rental ended, by run."""
    newest, rentals = {run: one for one in rented() for run in one.runs}, ledger().rentals()
    return {
        run: GoneMachine(one.why_gone(rentals), one.rental.ended)
        for run, one in newest.items()
        if one.is_gone
    }


@contextlib.contextmanager
def moving(run: str) -> Iterator[None]:
    """Keep a run's rented machine during the block, even if the run ends on it.

    The run continues elsewhere with files from this machine.
    """
    found = open_for(run)
    lock = None
    if found is not None:
        # Without the lock the machine may end early; then the run continues from the local copy.
        with contextlib.suppress(OSError):
            lock = ledger().take_for_move(found.rental.nonce)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def note_downloading(nonce: str, until: float) -> None:
    """Record, for other commands, the time until which files are downloaded.

    If the note cannot be written, for example on a full disk, another command may terminate the machine earlier.
    """
    with contextlib.suppress(OSError):
        write_durably(str(ledger().place(nonce) / DOWNLOADING), f"{until}\n")


def is_downloading(nonce: str, now: float) -> bool:
    """Whether the managing process is downloading files now, according to its own note."""
    try:
        return now < float((ledger().place(nonce) / DOWNLOADING).read_text()) + ENDING_S
    except (OSError, ValueError):
        return False


def note_lost(nonce: str, words: str) -> None:
    """Record the files that were not downloaded, for later commands. A failed write is ignored."""
    with contextlib.suppress(OSError):
        write_durably(str(ledger().place(nonce) / LOST), f"{words}\n")


def damage(book: RentalLedger, rental: Rental) -> str | None:
    """Return why this computer cannot know whether a run still needs its rented machine, or None if it can."""
    path = book.place(rental.nonce) / RECORD
    if not path.exists():
        return None  # the rental ended before it had a run
    record = _read(book, rental)
    if record is None:
        return f"{path} cannot be read"
    return None if Path(record.runs).is_dir() else f"{record.runs}, the folder of its run, does not exist"


def _why_ended(rental: Rental) -> str:
    """Return why a machine is no longer rented, as a sentence."""
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
