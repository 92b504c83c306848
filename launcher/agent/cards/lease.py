"""Leases: the claims of runs on this host's cards.

Each card has one file, `hosts/<host-id>/leases/<uuid>`, which names its run. The process that uses a card for
its run also holds `<uuid>.lock`, shared, while it lives. That is first `serve`, while it prepares the run,
and then `supervise`, which takes over without a gap. For example, a card whose file names run A is busy while
A's agent lives. The card is free when the lock is free and A is terminal, waiting, interrupted or gone, or
never began an attempt. Files change only under the folder's lock. No lock is inherited: descriptors close
when a program starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from functools import partial
from typing import Collection, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..liveness import run_state
from ..record import strict_json
from ..record.files import paths_in, read_json, write_durably
from ..record.locks import Lock
from ..record.rundir import TERMINAL, VERSION, RecordFolder, Run
from ..record.strict_json import JsonObject
from ..system import process
from . import tickets

FOLDER_S = 30.0
LEAVING_S = 3.0  # for an ended or abandoned run to release its card
TURN_S = 0.02
_FREE = (*TERMINAL, "waiting", "interrupted")
_PASSING = (
    *_FREE,
    "preparing",
)  # its agent is leaving, or its client may have gone and `serve` is about to notice


QUEUED, LOST = "queued", "lost"


class Busy(NamedTuple):
    """A card that cannot be taken, the run that holds it (None during its release), and that run's state.

    The state `queued` means that the card is free, but reserved for a launch that has waited longer. `lost`
    means that the run has seen the card fail.
    """

    gpu: str
    run: Optional[str]
    state: Optional[str]

    @property
    def words(self) -> str:
        """The reason in one clause."""
        if self.state == QUEUED:
            return "%s is reserved for a launch that has waited longer" % self.gpu
        if self.state == LOST:
            return "%s was lost" % self.gpu
        if self.run is None:
            return "%s is just being released" % self.gpu
        return "%s is leased by run %s%s" % (self.gpu, self.run, " (%s)" % self.state if self.state else "")


class Taken(NamedTuple):
    """The cards that a run got, with their locks; or no cards, and the holders of those that it asked for."""

    gpus: List[str]
    locks: List[Lock]
    busy: List[Busy]

    def release(self) -> None:
        """Release the cards, which the run's agent may also hold; their files stay."""
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
    """Take the first `count` free cards of `gpus` for a run, by default all. If fewer are free, take none.

    An agent in a container cannot see other runs, so it must not judge them: without `judges`, every card of
    another run is busy. If a card's run may be about to release it, `take` waits up to `wait_s` seconds. A
    new run is `in_line`: it leaves cards to launches that have waited longer, by their tickets. Raises
    OSError.
    """
    needed = len(gpus) if count is None else count
    deadline = time.monotonic() + wait_s
    while True:
        with _alone(run.root):
            free = partial(_is_free, run, judges)
            kept = tickets.kept_back(run.root, ticket, free) if in_line else set()
            taken = _take(run, gpus, needed, judges, kept)
        is_leaving = any(card.state is None or card.state in _PASSING for card in taken.busy)
        if len(taken.gpus) == needed or not is_leaving or time.monotonic() >= deadline:
            return taken
        time.sleep(TURN_S)


def draw(
    root: str, gpus: Sequence[str], count: Optional[int], ticket: Optional[tickets.Ticket] = None
) -> tickets.Ticket:
    """Draw a ticket for busy cards, or rewrite a ticket that was drawn before. Raises OSError."""
    needed = len(gpus) if count is None else count
    with _alone(root):
        if ticket is None:
            return tickets.draw(root, gpus, needed)
        ticket.write(gpus, needed)
        return ticket


def _is_free(run: Run, judges: bool, gpu: str) -> bool:
    path = _path(run.root, gpu)
    lock = _free_lock(run, path, read_json(path).get("run"), judges)
    if lock is not None:
        lock.release()
    return lock is not None


def _take(run: Run, gpus: Sequence[str], needed: int, judges: bool, kept: Collection[str]) -> Taken:
    taken = Taken([], [], [])
    for gpu in gpus:
        if len(taken.gpus) == needed:
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
    if len(taken.gpus) < needed:
        taken.release()
        return Taken([], [], taken.busy)
    for gpu in taken.gpus:
        path = _path(run.root, gpu)
        if read_json(path).get("run") != run.id:
            record = {"version": VERSION, "run": run.id, "gpu": gpu, "time": time.time()}
            write_durably(path, strict_json.encode(record) + "\n")
    return taken


def _free_lock(run: Run, path: str, holder: Optional[str], judges: bool) -> Optional[Lock]:
    """Return the lock of a card that is free for a run, now held shared; None if another run has the card."""
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
    """Whether a run no longer needs its unlocked card: it has ended, waits, is gone, or never began."""
    if not os.path.isdir(run.path) or not run.numbers():
        return True
    if run.place_id() not in (
        None,
        process.host_id(),
    ):  # None: the process that made it died before it recorded the place
        return False
    if run_state.state_of(run)["state"] in _FREE:
        return True
    return not any(folder.read_state().get("began") for folder in run.newest())


def give_back(run: Run) -> None:
    """Remove the leases of a run that has ended. The agent's locks end with the agent."""
    if not os.path.isdir(folder_of(run.root)):
        return
    with _alone(run.root):
        for path, holder in _records(run.root):
            if holder == run.id:
                os.unlink(path)


def files_of(root: str, gpus: Sequence[str]) -> List[str]:
    """Return the existing lease files and lock files of these cards."""
    paths = [path for gpu in gpus for path in (_path(root, gpu), _path(root, gpu) + ".lock")]
    return [path for path in paths if os.path.isfile(path)]


def of(run: Run) -> List[str]:
    """Return the cards that are leased to a run."""
    return [os.path.basename(path) for path, holder in _records(run.root) if holder == run.id]


def stale(root: str, *, dry_run: bool) -> List[Tuple[str, str]]:
    """Remove the leases of runs that are over, unless `dry_run`; return the card and the run of each."""
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
    """Take the run's last cards again, or the same number of others that it may have.

    A run without cards takes none. A card that the run has lost is never taken again. The run's leases on
    other cards are removed. `judges` is as for `take`. Raises OSError.
    """
    runtime, cards = run_state.runtime_of(run), run.cards()
    if not cards:
        return Taken([], [], [])
    possible = [*cards, *(str(gpu) for gpu in runtime.get("any_of") or () if gpu not in cards)]
    lost = lost_by(run)
    taken = take(run, [gpu for gpu in possible if gpu not in lost], len(cards), judges=judges, wait_s=wait_s)
    taken.busy.extend(Busy(gpu, None, LOST) for gpu in cards if gpu in lost and not taken.gpus)
    if taken.gpus:
        keep_only(run, taken.gpus)
    return taken


def lost_by(run: Run) -> Set[str]:
    """Return the cards that a run has seen fail, by its records."""
    return {
        gpu
        for folder in run.newest()
        for gpu in (folder.read_state().get("evidence") or {}).get("lost") or ()
    }


def lost_of(taken: Optional[Taken]) -> List[str]:
    """Return the cards to treat as lost after one of them failed: those that the driver no longer lists.

    If the driver lists all of them or does not answer, return all of them.
    """
    from . import nvidia

    gpus = [] if taken is None else list(taken.gpus)
    listed = nvidia.listed() if gpus else set()
    return [gpu for gpu in gpus if gpu not in listed] or gpus


def claim(run: Run) -> Taken:
    """Take a run's cards for its agent, which holds them while it lives.

    If the leases cannot be written, the run continues: its own lock shows that it is alive, and the leases
    that `serve` took exist.
    """
    try:
        return take_again(run) if run_state.probe_of(run).sees_host else _hold_own(run)
    except OSError:
        return Taken(run.cards(), [], [])


def _hold_own(run: Run) -> Taken:
    """Hold the cards whose leases name the run, and write nothing.

    An agent in a container sees no other leases.
    """
    taken = Taken([], [], [])
    for gpu in run.cards():
        path = _path(run.root, gpu)
        holder = read_json(path).get("run")
        lock = Lock.take(path + ".lock", 0.0, shared=True) if holder in (None, run.id) else None
        if lock is None:
            taken.release()
            return Taken([], [], [Busy(gpu, holder, None)])
        taken.gpus.append(gpu)
        taken.locks.append(lock)
    return taken


def keep_only(run: Run, gpus: Collection[str]) -> None:
    """Remove the run's leases on all other cards. Raises OSError."""
    kept = {_path(run.root, gpu) for gpu in gpus}
    with _alone(run.root):
        for path, holder in list(_records(run.root)):
            if holder == run.id and path not in kept:
                os.unlink(path)


def evidence(busy: Sequence[Busy]) -> JsonObject:
    """Return the evidence to record for a run that waits for its card."""
    return {"card": ", ".join(card.words for card in busy)}


def write_waiting(run: Run, last: RecordFolder | None, busy: Sequence[Busy]) -> None:
    """Record that a run waits for its card, in a new folder after the `last`. Raises FileExistsError."""
    from ..store import checkpoints  # imported here: not needed by a launch

    folder = run.new_folder(last, checkpoints.sealed_now(run))
    record = {
        "version": VERSION,
        "run": run.id,
        "kind": "contact",
        "folder": folder.number,
        "time": time.time(),
        "place_id": process.host_id(),
        "boot_id": process.boot_id(),
        "device": folder.device(),
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
    """Hold the folder's lock for an instant. Raises OSError if another process holds it for too long."""
    folder = folder_of(root)
    os.makedirs(folder, exist_ok=True)
    lock = Lock.take(os.path.join(folder, ".lock"), FOLDER_S)
    if lock is None:
        raise OSError(errno.EAGAIN, "another process holds the leases of this host", folder)
    try:
        yield
    finally:
        lock.release()
