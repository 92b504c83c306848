"""Keep an attempt's evidence about its precision on the host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from ..attempt.attempt_writer import AttemptWriter
from ..attempt.history import History, taken_knobs
from ..attempt.progress import AttemptProgress
from ..liveness import run_state
from ..record import precision_evidence
from ..record.rundir import VERSION, Run
from ..record.strict_json import JsonObject

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, EvidenceRecord, PlanRecord


class CheckpointEvidence:
    """The precision evidence of one attempt, kept beside that of other runs on the same host."""

    def __init__(
        self,
        run: Run,
        plan: PlanRecord,
        history: History,
        account: AttemptWriter,
        progress: AttemptProgress,
    ) -> None:
        """Begin; nothing is written yet."""
        self._run = run
        self._plan = plan
        self._history = history
        self._account = account
        self._progress = progress
        self.attempt: AttemptRecord = {}

    def keep_proof(self) -> None:
        """Keep the worker's proof from the first good steps, if it reported a key."""
        if isinstance((self._progress.proof or {}).get("key"), dict):
            self._keep(None)

    def keep_failure(self) -> None:
        """Keep a failure that the precision may have caused, if the script takes its precision from us."""
        failed = self._failed()
        if failed is not None:
            self._keep(failed)

    def keep_refuted(self) -> None:
        """Keep the failure, and drop earlier measurements of this precision and workload."""
        self._keep(self._failed(), refuted=self._plan["verification"]["workload"])

    def keep_measured(self, measured: JsonObject) -> None:
        """Keep the measurements of this precision's trials, if the worker reported a key and figures."""
        known = {name: measured.get(name) for name in precision_evidence.MEASURED}
        known["workload"] = self._plan["verification"]["workload"]
        if isinstance(measured.get("key"), dict) and precision_evidence.is_measured(known):
            self._keep(None, {"key": measured["key"], "measured": known})

    def _failed(self) -> Optional[str]:
        failure = self._progress.failure
        knobs = taken_knobs(self._progress.consumed | self._history.consumed)
        is_of_precision = failure is not None and failure.name in precision_evidence.FAILURES
        return failure.name if failure is not None and is_of_precision and "precision" in knobs else None

    def _keep(
        self, failed: Optional[str], trial: Optional[JsonObject] = None, refuted: Optional[str] = None
    ) -> None:
        """Keep a record, unless this is a rehearsal, which proves nothing about a card."""
        plan, proof = self._plan, None if trial else self._progress.proof
        if plan.get("rehearsed") is True:
            return
        key = (trial or proof or {}).get("key")
        if not isinstance(key, dict):
            packages = plan.get("environment") or plan.get("image") or {}
            precision = precision_evidence.precision_digest(self.attempt["precision"] or {})
            key = {"torch": packages.get("torch"), "model": None, "trainable": None, "precision": precision}
        record: EvidenceRecord = {
            "version": VERSION,
            "card": (plan.get("profile") or {}).get("name"),
            "driver": precision_evidence.driver(),
            "model": plan.get("model"),
            "method": plan.get("method"),
            "job": plan.get("job"),
            "key": key,
            "proof": proof,
            "failed": failed,
            "measured": (trial or {}).get("measured"),
            "refuted": refuted,
            "run": self._run.id,
            "time": time.time(),
        }
        folder = self._run.evidence(self.attempt["place_id"])
        try:
            if run_state.probe_of(self._run).sees_host:
                precision_evidence.keep(folder, self._account.redact(record))
            else:  # an agent outside collects it from the folder
                self._account.write_precision(record)
        except OSError as error:  # not worth failing this run
            self._account.record("evidence", {"not-kept": "%s: %s" % (folder, error.strerror)})
