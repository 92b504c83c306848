"""Import precision evidence of runs in containers and of jobs from the run's record.

    <root>/hosts/<place-id>/expected/<run-id>   digests of the records imported from the run so far

The agents of these runs can write only to the run's record. The place is this host or a cluster: evidence
from a cluster is valid on each of its login nodes.

A job may have written anything into the record, so its evidence counts only for its own plan: card, model,
method and job are taken from the plan. The number of records per run is limited, because the total for all
runs is limited too: a run with too many would displace the records of others. Evidence is imported before a
probe reads it, and before the run is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from typing import TYPE_CHECKING, List

from ..record import precision_evidence, strict_json
from ..record.files import paths_in, read_text, write_durably
from ..record.record_shape import read_plan, read_precision
from ..record.rundir import RUN_ID, TERMINAL, VERSION, Run
from ..record.safe_open import UnreadableError, status_of
from ..system import process

if TYPE_CHECKING:
    from ..record.run_records import EvidenceRecord, PlanRecord

MAX_RUNS = 100
"""The most runs that one probe looks at."""
MAX_PER_RUN = 50
"""The most records that are imported from one run."""
_DRIVER = re.compile(r"\d{3}\.\d+(?:\.\d+)?")


def expect(run: Run) -> None:
    """Note that a run may produce evidence."""
    folder = _folder_of(run.root, _place_of(run))
    os.makedirs(folder, exist_ok=True)
    write_durably(os.path.join(folder, run.id), "")


def take_in_all(root: str, place_id: str) -> None:
    """Import the new evidence of a place's runs below a root.

    Records that the disk refuses are left for next time.
    """
    try:
        paths = paths_in(_folder_of(root, place_id))
    except OSError:
        return
    for path in paths[:MAX_RUNS]:
        name = os.path.basename(path)
        if RUN_ID.fullmatch(name):
            with contextlib.suppress(OSError):
                _import_evidence(Run(os.path.join(root, "runs", name)), place_id)


def import_evidence(run: Run) -> None:
    """Import the new evidence of a run, if any is expected. Raises OSError."""
    _import_evidence(run, _place_of(run))


def _import_evidence(run: Run, place_id: str) -> None:
    path = os.path.join(_folder_of(run.root, place_id), run.id)
    text = read_text(path)
    if text is None:
        return
    known = text.split()
    last = run.last() if os.path.isdir(run.path) else None
    has_ended = last is None or last.read_state().get("state") in TERMINAL
    fresh = {} if last is None else {_digest(record): record for record in _records(run)}
    taken = [digest for digest in fresh if digest not in known][: max(0, MAX_PER_RUN - len(known))]
    for digest in taken:
        precision_evidence.keep(run.evidence(place_id), fresh[digest])
    if has_ended:
        os.unlink(path)
    elif taken:
        write_durably(path, "\n".join([*known, *taken]))


def _digest(record: EvidenceRecord) -> str:
    return hashlib.sha256(strict_json.encode(record).encode()).hexdigest()


def _records(run: Run) -> List[EvidenceRecord]:
    plan = read_plan(run.plan)
    records = []
    for number in run.numbers()[-MAX_PER_RUN:]:
        with contextlib.suppress(FileNotFoundError, UnreadableError):
            precision = run.folder(number).precision
            if status_of(precision).st_size > precision_evidence.MAX_BYTES:
                continue
            said = read_precision(precision)
            if isinstance(said.get("key"), dict) and plan.get("rehearsed") is not True:
                records.append(_record(run, plan, said))
    return records


def _record(run: Run, plan: PlanRecord, said: EvidenceRecord) -> EvidenceRecord:
    driver, failed = said.get("driver"), said.get("failed")
    return {
        "version": VERSION,
        "card": (plan.get("profile") or {}).get("name"),
        "driver": driver if driver and _DRIVER.fullmatch(driver) else None,
        "model": plan.get("model"),
        "method": plan.get("method"),
        "job": plan.get("job"),
        "key": said["key"],
        "proof": said.get("proof"),
        "failed": failed if failed in precision_evidence.FAILURES else None,
        "measured": said.get("measured"),
        "refuted": said.get("refuted"),
        "run": run.id,
        "time": min(said.get("time") or 0.0, time.time()),
    }


def _place_of(run: Run) -> str:
    return run.place_id() or process.host_id()


def _folder_of(root: str, place_id: str) -> str:
    return os.path.join(root, "hosts", place_id, "expected")
