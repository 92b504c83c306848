"""The queue for cards: launches that wait for the same cards get them first come, first served.

A ticket is a numbered file in `hosts/<host-id>/queue/`, with the acceptable cards and the number needed. It
is valid while the `serve` process of the waiting client holds its lock. Tickets are drawn and read under the
lock of the leases.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..record import strict_json
from ..record.files import paths_in, read_json, write_over
from ..record.locks import Lock
from ..system import process


class Ticket(NamedTuple):
    """A place in the queue, held by its lock."""

    path: str
    lock: Lock

    def write(self, gpus: Sequence[str], count: int) -> None:
        """Write the cards and the number needed in place: a replaced file would have another lock."""
        write_over(self.path, strict_json.encode({"gpus": list(gpus), "count": count}) + "\n")

    def leave(self) -> None:
        """Leave the queue."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.lock.release()


def folder_of(root: str) -> str:
    """Return the folder of this host's tickets."""
    return os.path.join(root, "hosts", process.host_id(), "queue")


def draw(root: str, gpus: Sequence[str], count: int) -> Ticket:
    """Take the last place in the queue, for `count` of these cards. Raises OSError."""
    folder = folder_of(root)
    os.makedirs(folder, exist_ok=True)
    last = max((int(os.path.basename(path)) for path, _ in _tickets(root)), default=0)
    path = os.path.join(folder, "%08d" % (last + 1))
    lock = Lock.take(path)
    if lock is None:  # another process can only be reading the new file, for an instant
        raise BlockingIOError("the ticket %s is held by another process" % path)
    ticket = Ticket(path, lock)
    ticket.write(gpus, count)
    return ticket


def kept_back(root: str, ticket: Optional[Ticket], is_free: Callable[[str], bool]) -> Set[str]:
    """Return the free cards reserved for launches ahead of a ticket, or for all launches if it is None."""
    kept: Set[str] = set()
    for path, (gpus, count) in _tickets(root):
        if ticket is not None and path >= ticket.path:
            break
        free = [gpu for gpu in gpus if gpu not in kept and is_free(gpu)]
        kept.update(free[:count])
    return kept


def _tickets(root: str) -> Iterator[Tuple[str, Tuple[List[str], int]]]:
    """Yield the valid tickets, oldest first; remove the others."""
    for path in sorted(paths_in(folder_of(root))):
        if not os.path.basename(path).isdigit():  # a temporary file, which a sweep removes
            continue
        lock = Lock.take(path, 0.0)
        if lock is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            lock.release()
            continue
        record = read_json(path)
        yield path, ([str(gpu) for gpu in record.get("gpus") or ()], int(record.get("count") or 0))
