"""The claims of runs on this host's cards: a file per card, `hosts/<host-id>/leases/<uuid>`, naming its run.

Files change only under the folder's lock. Whoever holds a card for its run (the `serve` that prepares it, then
`supervise`) keeps `<uuid>.lock` besides, shared, for as long as it lives: so one can take it over from the other without a
moment in which nobody has it. A card is free when that lock is, and its run is terminal, waiting, interrupted or gone,
or never began an attempt. No lock is inherited: descriptors close when a program starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from functools import partial
from typing import Any, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..fate import run_state
from ..record import strict_json
from ..record.rundir import TERMINAL, VERSION, Lock, Run, paths_in, read_json, write_durably
from ..system import process
from . import tickets

FOLDER_S = 30.0
LEAVING_S = 3.0  # for a run that has ended, or that its client has given up, to let go of its card
TURN_S = 0.02
_FREE = (*TERMINAL, "waiting", "interrupted")
_PASSING = (
    *_FREE,
    "preparing",
)  # its agent is leaving, or its client may be gone and `serve` about to see it


QUEUED = "queued"


class Busy(NamedTuple):
    """A card that another run holds: its UUID, the run (None: one that leaves just now) and that one's state.

    Of one that is free, and kept back for a launch that waits longer, the state is `queued`.
    """

    gpu: str
    run: Optional[str]
    state: Optional[str]

    @property
    def words(self) -> str:
        """It in one clause."""
        if self.state == QUEUED:
            return "%s is next for a launch that came before" % self.gpu
        if self.run is None:
            return "%s is just being let go" % self.gpu
        return "%s is leased by run %s%s" % (self.gpu, self.run, " (%s)" % self.state if self.state else "")


class Taken(NamedTuple):
    """The cards that a run got, with what holds them; or none, and who has those that it wanted."""

    gpus: List[str]
    locks: List[Lock]
    busy: List[Busy]

    def release(self) -> None:
        """Let go of the cards, which the run's own agent may hold besides; their files stay."""
        for lock in self.locks:
            lock.release()
        del self.locks[:]


def folder_of(root: str) -> str:
    """Return the folder of this host's leases."""
    return os.path.join(root, "hosts", process.host_id(), "leases")


def take(
    run: Run,
    gpus: Sequence[str],
    count: Optional[int] = None,
    *,
    judges: bool = True,
    wait_s: float = LEAVING_S,
    in_line: bool = False,
    ticket: Optional[tickets.Ticket] = None,
) -> Taken:
    """Take so many of some cards for a run, the first that are free, or none; all of them without a `count`.

    Whoever cannot see other runs (in a container) must not judge them: without `judges` every card of another run is
    busy. A card whose run may be about to leave it is waited for `wait_s` seconds. A new run stands `in_line`: it leaves
    cards to those that wait longer, by their tickets. Raises OSError.
    """
    wanted = len(gpus) if count is None else count
    deadline = time.monotonic() + wait_s
    while True:
        with _alone(run.root):
            free = partial(_is_free, run, judges)
            kept = tickets.kept_back(run.root, ticket, free) if in_line else set()
            taken = _take(run, gpus, wanted, judges, kept)
        is_leaving = any(one.state is None or one.state in _PASSING for one in taken.busy)
        if len(taken.gpus) == wanted or not is_leaving or time.monotonic() >= deadline:
            return taken
        time.sleep(TURN_S)


def draw(
    root: str, gpus: Sequence[str], count: Optional[int], ticket: Optional[tickets.Ticket] = None
) -> tickets.Ticket:
    """Draw a ticket for cards that are busy, or say these on one that was drawn. Raises OSError."""
    needed = len(gpus) if count is None else count
    with _alone(root):
        if ticket is None:
            return tickets.draw(root, gpus, needed)
        ticket.say(gpus, needed)
        return ticket


def _is_free(run: Run, judges: bool, gpu: str) -> bool:
    path = _path(run.root, gpu)
    lock = _free_lock(run, path, read_json(path).get("run"), judges)
    if lock is not None:
        lock.release()
    return lock is not None


def _take(run: Run, gpus: Sequence[str], wanted: int, judges: bool, kept: Collection[str]) -> Taken:
    taken = Taken([], [], [])
    for gpu in gpus:
        if len(taken.gpus) == wanted:
            break
        if gpu in kept:
            taken.busy.append(Busy(gpu, None, QUEUED))
            continue
        path = _path(run.root, gpu)
        holder = read_json(path).get("run")
        lock = _free_lock(run, path, holder, judges)
        if lock is None:
            state = run_state.state_of(_run(run.root, holder))["state"] if holder and judges else None
            taken.busy.append(Busy(gpu, holder, state))
        else:
            taken.gpus.append(gpu)
            taken.locks.append(lock)
    if len(taken.gpus) < wanted:
        taken.release()
        return Taken([], [], taken.busy)
    for gpu in taken.gpus:
        path = _path(run.root, gpu)
        if read_json(path).get("run") != run.id:
            record = {"version": VERSION, "run": run.id, "gpu": gpu, "time": time.time()}
            write_durably(path, strict_json.encode(record) + "\n")
    return taken


def _free_lock(run: Run, path: str, holder: Optional[str], judges: bool) -> Optional[Lock]:
    """Return the second lock of a card that is free for a run, shared by now; None where another run has it."""
    if holder == run.id:
        return Lock.take(path + ".lock", 0.0, shared=True)
    lock = Lock.take(path + ".lock", 0.0)
    if lock is None:
        return None
    if holder is not None and not (judges and is_over(_run(run.root, holder))):
        lock.release()
        return None
    lock.share()
    return lock


def is_over(run: Run) -> bool:
    """Whether a run that nobody holds a card for needs it no more: it has ended, waits, is gone, or never began."""
    if not os.path.isdir(run.path) or not run.numbers():
        return True
    if run.place_id() != process.host_id():
        return False
    if run_state.state_of(run)["state"] in _FREE:
        return True
    return not any(run.folder(number).read_state().get("began") for number in run.numbers())


def give_back(run: Run) -> None:
    """Remove the leases of a run that has ended. Its agent's locks go with the agent."""
    if not os.path.isdir(folder_of(run.root)):
        return
    with _alone(run.root):
        for path, holder in _records(run.root):
            if holder == run.id:
                os.unlink(path)


def of(run: Run) -> List[str]:
    """Return the cards that a run has on record."""
    return [os.path.basename(path) for path, holder in _records(run.root) if holder == run.id]


def stale(root: str, *, dry_run: bool) -> List[Tuple[str, str]]:
    """Remove the leases that nobody holds any more, unless `dry_run`; return (card, run) of each."""
    if not os.path.isdir(folder_of(root)):
        return []
    found = []
    with _alone(root):
        for path, holder in _records(root):
            lock = Lock.take(path + ".lock", 0.0)
            if lock is None:
                continue
            if is_over(_run(root, holder)):
                found.append((os.path.basename(path), holder))
                if not dry_run:
                    os.unlink(path)
            lock.release()
    return found


def take_again(run: Run, *, judges: bool = True, wait_s: float = 0.0) -> Taken:
    """Take the cards that a run had last, or others that it may have, as many; a run without cards takes none.

    Of others that it has on record it lets go. `judges` is as for `take`. Raises OSError.
    """
    runtime, had = run_state.runtime_of(run), run.cards()
    if not had:
        return Taken([], [], [])
    others = [str(one) for one in runtime.get("any_of") or () if one not in had]
    taken = take(run, [*had, *others], len(had), judges=judges, wait_s=wait_s)
    if taken.gpus:
        keep_only(run, taken.gpus)
    return taken


def claim(run: Run) -> Taken:
    """Take a run's cards for its agent, which holds them for life.

    Where the leases cannot be written the run goes on: its own lock says that it lives. What `serve` took is there.
    """
    try:
        return take_again(run, judges=run_state.fate_of(run).sees_host)
    except OSError:
        return Taken(run.cards(), [], [])


def keep_only(run: Run, gpus: Collection[str]) -> None:
    """Remove the leases of a run on all cards but these. Raises OSError."""
    kept = {_path(run.root, gpu) for gpu in gpus}
    with _alone(run.root):
        for path, holder in list(_records(run.root)):
            if holder == run.id and path not in kept:
                os.unlink(path)


def evidence(busy: Sequence[Busy]) -> Dict[str, Any]:
    """Return what is put on record of a run that waits for its card."""
    return {"card": ", ".join(one.words for one in busy)}


def write_waiting(run: Run, busy: Sequence[Busy]) -> None:
    """Put on record that a run waits for its card, in a folder of its own."""
    folder = run.new_folder()
    record = {
        "version": VERSION,
        "run": run.id,
        "kind": "contact",
        "folder": folder.number,
        "time": time.time(),
        "place_id": process.host_id(),
        "boot_id": process.boot_id(),
    }
    folder.write_state("waiting", "card", evidence=evidence(busy))
    write_durably(folder.attempt, strict_json.encode(record) + "\n")
    folder.release()


def _run(root: str, name: str) -> Run:
    return Run(os.path.join(root, "runs", name))


def _path(root: str, gpu: str) -> str:
    return os.path.join(folder_of(root), re.sub(r"[^A-Za-z0-9-]", "_", gpu)[:100])


def _records(root: str) -> Iterator[Tuple[str, str]]:
    for path in paths_in(folder_of(root)):
        if not os.path.basename(path).endswith((".lock", ".tmp")):
            yield path, str(read_json(path).get("run"))


@contextlib.contextmanager
def _alone(root: str) -> Iterator[None]:
    """Hold the folder's lock, for an instant. Raises OSError where that cannot be had."""
    folder = folder_of(root)
    os.makedirs(folder, exist_ok=True)
    lock = Lock.take(os.path.join(folder, ".lock"), FOLDER_S)
    if lock is None:
        raise OSError(errno.EAGAIN, "the leases of this host are held by another", folder)
    try:
        yield
    finally:
        lock.release()
