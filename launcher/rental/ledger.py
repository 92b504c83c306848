"""The rental ledger: every launch request of this user, written to disk before the call, and its outcome.

Each rental has an append-only file of JSON lines: first its intent, then one line per step. A line counts
once it is complete and on disk. A step is written under the file's lock, and only if it fits the rental's
state, so two processes that take the same step record it once. Next to the file is the lock of the process
that manages the rental. The lock ends with that process, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, cast

from platformdirs.unix import Unix
from pydantic import ValidationError

from launcher.agent.record import strict_json
from launcher.agent.record.files import sync_folder
from launcher.agent.record.locks import Lock, is_locked
from launcher.agent.record.safe_open import write_all
from launcher.errors import BadFileError, RefusedError
from launcher.rental.lease.rental_lock import RentalLock, is_alive, is_stopped, reads_limits
from launcher.rental.renting import OPEN, ExtraInstance, Intent, Rental, RentalState

NONCE_CHARACTERS = "abcdefghijklmnopqrstuvwxyz234567"
NONCE_LENGTH = 12
MOVING = "moving.lock"
ASKED = "asked.lock"
"""The lock of a command that asks for a machine. If the command is killed, the request ends with it."""
REFUSED = "refused"
"""This file exists while the account refuses the API key of the process that manages the rental."""
FITTING = {
    RentalState.LAUNCHED: (RentalState.INTENT,),
    RentalState.READY: (RentalState.LAUNCHED,),
    RentalState.ENDING: (
        RentalState.INTENT,
        RentalState.LAUNCHED,
        RentalState.READY,
        RentalState.DISMISSED,
    ),
    RentalState.ENDED: (*OPEN, RentalState.DISMISSED),
    RentalState.REFUSED: (RentalState.INTENT,),
    RentalState.UNSEEN: (RentalState.INTENT,),
    RentalState.DISMISSED: OPEN,
}
"""For each state, the states that may precede it."""


def new_nonce() -> str:
    """Return a new random nonce of 60 bits, valid in instance names and tags."""
    return "".join(secrets.choice(NONCE_CHARACTERS) for _ in range(NONCE_LENGTH))


def usual_folder() -> Path:
    """Return the folder of this user's ledger."""
    return Unix("launch").user_data_path / "rentals"


class RentalLine(TypedDict, total=False):
    """A line after the intent: a new state, a price, a limit, an extra instance, or a missing instance."""

    kind: str
    time: float
    why: str
    instance: str
    cents: int
    cents_per_hour: int
    deadline: float


class RentalLedger:
    """The rentals in one folder."""

    def __init__(self, folder: Path) -> None:
        """Use a folder. `open` creates it if it is missing."""
        self._folder = folder

    def open(self, intent: Intent) -> RentalLock:
        """Write an intent to disk. Return the lock by which this process manages the rental.

        The lock is taken first, so no other process sees a new rental without one. Raises RefusedError if the
        write fails.
        """
        try:
            self._make_folder()
            lock = self._hold(intent.nonce)
            if lock is None:
                raise FileExistsError(f"{self._lock(intent.nonce)} is locked")
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
            descriptor = os.open(self._file(intent.nonce), flags, 0o600)
            try:
                _append(descriptor, {"kind": "intent", **intent.model_dump()})
            finally:
                os.close(descriptor)
            sync_folder(str(self._folder))
        except OSError as error:
            mend = "nothing was rented; make room or set the folder's permissions, then try again"
            raise RefusedError(f"{self.words(error)}\n  {mend}") from error
        return lock

    def words(self, error: Exception) -> str:
        """Return the message for a failed read or write of the ledger."""
        why = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        return f"{self._folder}: cannot write the rental ledger, so nothing is rented: {why}"

    def take(self, nonce: str) -> RentalLock | None:
        """Take over the management of a rental. Return None if another running process manages it.

        A stopped process loses the rental.
        """
        lock = self._hold(nonce)
        if lock is None and is_stopped(self._lock(nonce)):
            with self._locked(nonce):  # only one of two waiting processes takes the rental
                if is_stopped(self._lock(nonce)):
                    self._lock(nonce).unlink(missing_ok=True)
                    lock = self._hold(nonce)
        return lock if lock is None else self._without_refusal(nonce, lock)

    def _hold(self, nonce: str) -> RentalLock | None:
        lock = Lock.take(str(self._lock(nonce)))
        return lock if lock is None else RentalLock(lock.fileno(), self._lock(nonce))

    def inherited(self, nonce: str) -> RentalLock | None:
        """Return the rental lock that this process inherited, or None. Only the first call returns the lock."""
        descriptor = _inherited(self._lock(nonce))
        return (
            None
            if descriptor is None
            else self._without_refusal(nonce, RentalLock(descriptor, self._lock(nonce)))
        )

    def _without_refusal(self, nonce: str, lock: RentalLock) -> RentalLock:
        """Remove the note that an earlier process's API key was refused."""
        (self.place(nonce) / REFUSED).unlink(missing_ok=True)
        return lock

    def is_held(self, nonce: str) -> bool:
        """Whether a running process manages a rental. A stopped process does not count."""
        return is_alive(self._lock(nonce))

    def is_locked(self, nonce: str) -> bool:
        """Whether a process has the lock of a rental, even a stopped process."""
        return is_locked(str(self._lock(nonce)))

    def is_stopped(self, nonce: str) -> bool:
        """Whether the process that manages a rental no longer updates its heartbeat."""
        return self.is_locked(nonce) and not self.is_held(nonce)

    def is_attended(self, nonce: str) -> bool:
        """Whether a running process manages a rental with an accepted API key.

        It can terminate the machine.
        """
        return self.is_held(nonce) and not self.is_refused(nonce)

    def is_refused(self, nonce: str) -> bool:
        """Whether the account refuses the managing process's API key.

        It then cannot terminate the machine.
        """
        return (self.place(nonce) / REFUSED).exists()

    def note_refused(self, nonce: str) -> None:
        """Record the refused key, for commands that have another one. Raises OSError."""
        (self.place(nonce) / REFUSED).touch()

    def take_for_move(self, nonce: str) -> Lock | None:
        """Keep a machine while its run moves elsewhere.

        Return None if another process moves it. Raises OSError.
        """
        return Lock.take(str(self.place(nonce) / MOVING))

    def is_left_by_run(self, nonce: str) -> bool:
        """Whether a run is moving off a machine now."""
        return is_locked(str(self.place(nonce) / MOVING))

    def ask_for(self, nonce: str) -> Lock | None:
        """Ask a process that only keeps a machine to give it up.

        Return None if another command already asks. Raises OSError.
        """
        return Lock.take(str(self.place(nonce) / ASKED))

    def is_asked_for(self, nonce: str) -> bool:
        """Whether a running command asks for a machine."""
        return is_locked(str(self.place(nonce) / ASKED))

    def place(self, nonce: str) -> Path:
        """Return the folder of a rental's own files: known_hosts, logs, its record."""
        return self._folder / nonce

    def rentals(self) -> tuple[Rental, ...]:
        """Return all readable rentals, oldest first."""
        read = [rental for path in self._files() if (rental := _read_or_none(path)) is not None]
        return tuple(sorted(read, key=lambda rental: (rental.intent.time, rental.nonce)))

    def unreadable(self) -> tuple[Path, ...]:
        """Return the files that this version cannot read as a rental. Their instances may be billed.

        A file with an incomplete intent is left out, because no call followed it, unless the rental has a
        folder of files: then its machine has booted.
        """
        return tuple(path for path in self._files() if not _is_readable(path))

    def rental(self, nonce: str) -> Rental:
        """Return a rental. Raises BadFileError, FileNotFoundError."""
        rental = _read(self._file(nonce))
        if rental is None:
            raise FileNotFoundError(self._file(nonce))
        return rental

    def step(
        self,
        nonce: str,
        state: RentalState,
        time: float,
        *,
        instance: str | None = None,
        cents: int | None = None,
        why: str = "",
    ) -> Rental:
        """Move a rental to a state, if its current state allows that.

        Return the resulting rental. Raises OSError.
        """
        line: RentalLine = {"kind": state.value, "time": time}
        if instance is not None:
            line["instance"] = instance
        if cents is not None:
            line["cents"] = cents
        if why:
            line["why"] = why
        return self._add(nonce, line, lambda rental: rental.state in FITTING[state])

    def note_missing(self, nonce: str, time: float) -> Rental:
        """Record when a rental was first found without an instance and without a process that holds it."""
        line: RentalLine = {"kind": "missing", "time": time}
        return self._add(nonce, line, lambda rental: rental.missing_since is None)

    def note_price(self, nonce: str, cents_per_hour: int) -> Rental:
        """Record that the price per hour differs from the offer."""
        return self._add(nonce, {"kind": "price", "cents_per_hour": cents_per_hour}, lambda _: True)

    def note_limit(self, nonce: str, deadline: float) -> Rental:
        """Record a later deadline. An earlier deadline changes nothing. Raises OSError."""
        line: RentalLine = {"kind": "limit", "deadline": deadline}
        return self._add(nonce, line, lambda rental: deadline > rental.intent.deadline)

    def reads_limits(self, nonce: str) -> bool:
        """Whether a raised limit takes effect.

        True if no process manages the rental, or if the managing process reads limits.
        """
        return not self.is_locked(nonce) or reads_limits(self._lock(nonce))

    def note_extra(self, nonce: str, instance: str, cents: int | None = None) -> Rental:
        """Record another instance of a rental, and its cost once it is gone."""

        def is_news(rental: Rental) -> bool:
            known = {extra.id: extra for extra in rental.extras}.get(instance)
            return known is None or (known.cents is None and cents is not None)

        line: RentalLine = {"kind": "extra", "instance": instance}
        if cents is not None:
            line["cents"] = cents
        return self._add(nonce, line, is_news)

    def _add(self, nonce: str, line: RentalLine, fits: Callable[[Rental], bool]) -> Rental:
        """Append a line if it fits the rental's current state. Return the resulting rental."""
        with self._locked(nonce) as (descriptor, rental):
            if not fits(rental):
                return rental
            _append(descriptor, line)
            return _after(rental, line)

    @contextmanager
    def _locked(self, nonce: str) -> Iterator[tuple[int, Rental]]:
        descriptor = os.open(self._file(nonce), os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            rental = _read(self._file(nonce))
            if rental is None:
                raise FileNotFoundError(self._file(nonce))
            yield descriptor, rental
        finally:
            os.close(descriptor)

    def _make_folder(self) -> None:
        """Create the folder. Sync each new parent folder to disk."""
        missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in missing:
            sync_folder(str(path.parent))

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []

    def _file(self, nonce: str) -> Path:
        return self._folder / f"{nonce}.jsonl"

    def _lock(self, nonce: str) -> Path:
        return self._folder / f"{nonce}.lock"


def _inherited(path: Path) -> int | None:
    """Return the file descriptor that this process inherited for a file, or None.

    Python makes descriptors non-inheritable, so an inheritable one was passed on purpose.
    """
    try:
        wanted, names = path.stat(), os.listdir("/dev/fd")
    except OSError:
        return None
    for descriptor in sorted(int(name) for name in names if name.isdecimal()):
        try:
            is_it = os.path.samestat(os.fstat(descriptor), wanted)
            if is_it and os.get_inheritable(descriptor):
                os.set_inheritable(descriptor, False)
                return descriptor
        except OSError:
            continue  # the descriptor of the listing itself
    return None


def _append(descriptor: int, line: Mapping[str, object]) -> None:
    """Append a line and return once it is on disk. If the last write was cut off, start a new line first."""
    size = os.fstat(descriptor).st_size
    is_cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    write_all(descriptor, (b"\n" if is_cut_off else b"") + json.dumps(line, allow_nan=False).encode() + b"\n")


def _read(path: Path) -> Rental | None:
    """Read a rental. Return None if its intent was never complete, so no call followed it.

    Raises BadFileError, OSError.
    """
    data = path.read_bytes()
    head, *rest = data.split(b"\n")[:-1] or [b""]
    if not head:
        return None
    try:
        rental = Rental(intent=Intent.model_validate_json(head))
    except ValidationError:
        if not rest and _line(head) is None:
            return None  # the power failed during the write
        raise BadFileError(
            f"{path} is not a rental's file: a newer launcher may have written it\n  its instance, if any, is in the provider's list"
        ) from None
    try:
        for text in rest:
            if (line := _line(text)) is not None:  # else a write was cut off
                rental = _after(rental, line)
        return Rental.model_validate(dict(rental))
    except (LookupError, TypeError, ValidationError):
        raise BadFileError(
            f"{path}: a line is damaged: the rental that it records may still be billed"
        ) from None


def _read_or_none(path: Path) -> Rental | None:
    try:
        return _read(path)
    except (BadFileError, OSError):
        return None


def _is_readable(path: Path) -> bool:
    try:
        return _read(path) is not None or not path.with_suffix("").is_dir()
    except (BadFileError, OSError):
        return False


def _line(text: bytes) -> RentalLine | None:
    try:
        line = strict_json.decode(text)
    except ValueError:
        return None
    return cast("RentalLine", line) if isinstance(line, dict) else None


def _after(rental: Rental, line: RentalLine) -> Rental:
    """Apply one line to a rental and return the result.

    Unknown kinds, from later versions, change nothing.
    """
    kind, time = line.get("kind"), line.get("time", rental.intent.time)
    if kind == "missing":
        return rental.model_copy(update={"missing_since": time})
    if kind in ("price", "limit"):
        changed = (
            {"cents_per_hour": line["cents_per_hour"]} if kind == "price" else {"deadline": line["deadline"]}
        )
        intent = {**rental.intent.model_dump(), **changed}
        return rental.model_copy(update={"intent": Intent.model_validate(intent)})
    if kind == "extra":
        known = {extra.id: extra for extra in rental.extras}
        known[line["instance"]] = ExtraInstance(line["instance"], line.get("cents"))
        return rental.model_copy(update={"extras": tuple(known.values())})
    state = next((one for one in RentalState if one == kind), None)
    if state is None:
        return rental
    update: dict[str, object] = {"state": state, "why": line.get("why") or rental.why}
    update["instance"] = line.get("instance") or rental.instance
    if state in (RentalState.LAUNCHED, RentalState.READY, RentalState.ENDED):
        update[state.value] = time
    if state is RentalState.ENDED:
        update["cents"] = line.get("cents", 0)
    return rental.model_copy(update=update)
