"""Files that would be lost with a run: its client does not hold them in the same version."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Mapping, NamedTuple

from ..record import strict_json
from ..record.rundir import Run
from .outputs import CHECKPOINT, OutputDigests, OutputScan, WrittenFile, open_output

MAX_NAMED = 1000


class LastCopies(NamedTuple):
    """Files that exist only on this host.

    `files` are some of them, `number` and `size` count all of them. `unseen` maps each path that could not be
    read to the reason. `look` changes with every file that the run wrote: equal values mean the same files.
    """

    files: List[WrittenFile]
    number: int
    size: int
    unseen: Dict[str, str]
    look: str

    def describe(self) -> Dict[str, Any]:
        """Return it as JSON for the client."""
        files = [[found.path, found.kind, found.size] for found in self.files]
        return {"files": files, "count": self.number, "bytes": self.size, "unseen": self.unseen}


def last_copies(
    run: Run, digests: OutputDigests, held: Mapping[str, str], *, with_checkpoints: bool
) -> LastCopies:
    """Return the files that would be lost with a run.

    `held` maps the path of each client file to its SHA-256. Without `with_checkpoints` the loss of a
    checkpoint does not count.
    """
    scan = OutputScan(run, digests, matches_all=True)  # patterns select downloads, not possible losses
    files: List[WrittenFile] = []
    number = size = 0
    look = hashlib.sha256()
    for found in scan.outputs():
        look.update(_line(found))
        is_accepted = found.kind == CHECKPOINT and not with_checkpoints
        if is_accepted or (found.path in held and held[found.path] == _digest(run, found, digests)):
            continue
        number, size = number + 1, size + found.size
        if len(files) < MAX_NAMED:
            files.append(found)
    return LastCopies(files, number, size, dict(sorted(scan.left_out.items())[:100]), look.hexdigest())


def look_again(run: Run, digests: OutputDigests) -> str:
    """Return the `look` of a run without reading its files."""
    look = hashlib.sha256()
    for found in OutputScan(run, digests, matches_all=True).outputs():
        look.update(_line(found))
    return look.hexdigest()


def _line(found: WrittenFile) -> bytes:
    return strict_json.encode([found.path, *found.mark]).encode()


def _digest(run: Run, found: WrittenFile, digests: OutputDigests) -> str | None:
    """Return the digest of a file as it was found; None if it has changed since."""
    try:
        descriptor, status = open_output(run, found.path)
    except OSError:
        return None
    try:
        return digests.of(found.path, descriptor) if status.st_size == found.size else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
