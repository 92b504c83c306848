"""Remove a batch: delete its queue, log and code, and keep its runs, its table and its picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from launcher.batch import batch_index
from launcher.batch.batch_queue import PICTURE, RESULTS, BatchQueue, take_work, worker_words
from launcher.batch.queued_item import UNENDED
from launcher.copy.local_copy import local_copies
from launcher.copy.run_files import RunFiles
from launcher.errors import RunError, UsageError
from launcher.upload import upload_record
from launcher.upload.frozen_code import FOLDER as CODE
from launcher.values.record import State


class Removed(NamedTuple):
    """The remains of a removed batch: the number of its runs, and its table and picture.

    `with_code` is the number of runs that keep their code, since they may be resumed elsewhere.
    """

    runs: int
    kept: list[Path]
    with_code: int


def remove_batch(queue: BatchQueue) -> Removed:
    """Remove a batch whose items have ended.

    Return its remains. Raises UsageError if items have not ended.
    """
    first = f"first   launch batch stop {queue.name}"
    work = take_work(queue)
    if work is None:
        raise UsageError(f"{queue.name}: {worker_words(queue)} runs it\n  {first}")
    try:
        runs = sum(item.run is not None for item in queue.items())
        if left := queue.count(*UNENDED):
            raise UsageError(f"{queue.name}: {left} of its items have not ended\n  {first}")
        identity = queue.identity()
        queue.close()
        with_code = _keep_code(queue.folder)
        kept = _keep_results(queue.folder)
        queue.files.remove_tree()
        batch_index.forget(identity, queue.folder)
    except OSError as error:
        raise RunError(f"{error.filename or queue.folder}: {error.strerror}") from error
    finally:
        work.release()
    return Removed(runs, kept, with_code)


def _keep_code(folder: Path) -> int:
    """Give each run that has not succeeded its own copy of its code from this folder. Return their number.

    Such a run may be resumed on another host while its own does not answer, and then this copy is the only
    one. Runs resumed from a run of the batch also have their code from this folder. Raises OSError.
    """
    unfinished = [
        local_copy
        for local_copy in local_copies()
        if (state := local_copy.state()) is None or state.state != State.SUCCEEDED
    ]
    return sum(upload_record.keep(local_copy, folder / CODE) > 0 for local_copy in unfinished)


def _keep_results(folder: Path) -> list[Path]:
    """Move the table and the picture of a batch out of its folder. Return their new paths. Raises OSError."""
    when = time.strftime("%y%m%d-%H%M%S")
    batches, kept = RunFiles(folder.parent), []
    for name in (RESULTS, PICTURE):
        if batches.is_file(f"{folder.name}/{name}"):
            kept.append(folder.with_name(f"{folder.name}-{when}-{name}"))
            batches.rename(f"{folder.name}/{name}", kept[-1])
    return kept
