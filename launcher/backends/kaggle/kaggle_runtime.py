"""Kaggle: each segment of a run is a separate kernel, a script that starts the agent and prints its record."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from launcher.backends.base.runtime import (
    ResumeInputs,
    RunResource,
    Runtime,
    Say,
    SharedResource,
    UnknownResource,
)
from launcher.backends.spool.segments import LeftoverSegment
from launcher.backends.spool.spooled_client import SpooledClient
from launcher.errors import HostError, ServiceError
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan
from launcher.values.record import RuntimeRecord
from launcher.values.reported.answers import ResumedRun

LAST_WORDS_S = 5.0
FIRST_S = 60.0
"""The longest wait, in seconds, for the client that pushed the last segment to push the next one."""
LOOK_S = 3.0


class KaggleRuntime(Runtime):
    """Runs as kernels of an account. The host client is that of a spool."""

    name = "kaggle"
    has_sessions = True

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record for a Kaggle account; `None` for any other host."""
        return RuntimeRecord(kind=cls.name) if host.kind == "kaggle" else None

    def needs(self, plan: Plan) -> str | None:
        """Return `pack`: code and data are sent in the script, or in a dataset."""
        return "pack"

    def create(
        self,
        run: str,
        plan: Plan,
        gpus: Sequence[str],
        count: int | None = None,
        *,
        any_of: Sequence[str] = (),
        queues: bool = False,
    ) -> tuple[str, ...]:
        """Make the run's folder in the spool. A session has its own cards, so none is leased."""
        self._run = run
        return super().create(run, plan, gpus, count, any_of=any_of, queues=queues)

    def provide(self, plan: Plan, say: Say) -> str:
        """Pack the run's work files. Files too large for a script are uploaded."""
        return self._spool.segments.service.send_tree(self._spool.segments.run(self._run), say)

    def start(self, run: str) -> str | None:
        """Push the run's first kernel. It begins once the service has a machine for it."""
        self.client.preparation.hand_over(run)
        self._push(run)
        return None

    def resume(self, run: str, needs: ResumeInputs) -> ResumedRun:
        """Push a run's next kernel, unless another client has.

        The last session must be over and its outputs downloaded. The service has no lock: two pushes at once
        would both begin. So the client that pushed the last kernel goes first.
        """
        needs.wait(f"until its last session's files are here; {self._spool.about}")
        self._spool.download_files(run, lambda _count: None)
        segments = self._spool.segments
        if self._is_continued(run, needs):
            return ResumedRun(state="running", is_ours=False, by="another client of the account")
        segments.check_goes_on_here(run)
        resumed = self.ask_to_resume(run, needs)
        if resumed.place is not None:
            self._push(run)
        return resumed

    def start_words(self, job_id: str | None) -> str:
        """Return the status of a run after its push."""
        record = self._spool.segments.record(self._run)
        if record is not None and record.status == "unsettled":
            return "Kaggle has not confirmed the push: launch attach finds out whether it arrived"
        if record is not None and record.status == "waiting":
            when = time.strftime("%d %b %H:%M", time.localtime(record.retry_at))
            return f"no session yet ({record.words}): launch attach pushes it, from {when} on"
        return super().start_words(job_id)

    def _push(self, run: str) -> None:
        """Push the next kernel.

        After that, the run's liveness comes from the service, not from the lock of its local folder.
        """
        self._spool.segments.push(run)
        self.client.runs.await_agent(run, 0.0)

    def _is_continued(self, run: str, needs: ResumeInputs) -> bool:
        """Whether another client has pushed the next kernel.

        Wait a while if another client pushed the last one, because that client goes first.
        """
        segments = self._spool.segments
        record = segments.advance(run)
        first_s = 0.0
        if record is not None and record.other_client == "latest":
            first_s = random.uniform(1.0, 1.5) * min(FIRST_S, 5 + record.session_s / 10)  # noqa: S311 - jitter
        until = time.monotonic() + first_s
        while record is not None and not record.is_live:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            needs.wait(f"for the client that pushed its last session, {left_s:.0f} s more")
            time.sleep(min(LOOK_S, left_s))
            record = segments.advance(run)
        return record is not None and record.status != "waiting"

    def stop(self, run: str, grace_s: float) -> bool:
        """Delete the run's kernel, which is the only way to end it. Output printed so far is kept.

        The kernel of a run that has succeeded or failed is kept, because its outputs may exist only there. If
        the run was stopped or only its session has ended, the outputs are downloaded and the kernels deleted,
        so that no other client continues them.
        """
        feeder = self._spool.feeder(run)
        if feeder is not None:
            feeder.catch_up(LAST_WORDS_S)
        if not self._spool.segments.has_ended(run):
            self._spool.segments.end(run)
            self._spool.await_record(run)
        if not self._spool.segments.has_ended(run) or self._spool.segments.state(run) == "stopped":
            self._retire(run)
            record = self._spool.segments.record(run)
            if record is not None and record.lost:
                short = run.rpartition("-")[2]
                words = (
                    f"{run} is stopped here, but Kaggle does not show {record.lost[0]} yet, and may run it"
                )
                raise HostError(self.client.host, f"{words}\n  again in some minutes   launch stop {short}")
        return True

    def _retire(self, run: str) -> None:
        try:
            self._spool.download_files(run, lambda _count: None)
            self._spool.segments.retire(run)
        except ServiceError as error:
            host, short = self.client.host, run.rpartition("-")[2]
            words = "is stopped here, but its kernels stay for now, and another client may continue from them"
            raise HostError(
                host, f"{run} {words}: {str(error).splitlines()[0]}\n  again   launch stop {short}"
            ) from error

    def remove(self, run: str) -> str | None:
        """Delete the kernels of a run that was removed from the spool.

        Return a message if that fails, with the next step.
        """
        try:
            self._spool.segments.clear_away(run)
        except ServiceError as error:
            host = self.client.host
            return f"its kernels stay for now: {str(error).splitlines()[0]}   launch gc --host {host}"
        return None

    # all objects of the runtime in the account

    def holdings(self) -> list[RunResource]:
        """Return the kernels that this spool has pushed and does not need."""
        root = self.client.upkeep.root_label()
        kept = self._spool.segments.kept()
        return [RunResource("kernel", one.ref, one.ref, one.run, root, is_up=False) for one in kept]

    def supplies(self, root: str | None = None) -> list[SharedResource]:
        """Return the datasets that this spool has made, each with the number of its runs that need it."""
        return [
            SharedResource("dataset", name, size, 0.0, users)
            for name, size, users in self._spool.segments.service.trees()
        ]

    def unknown(self) -> list[UnknownResource]:
        """Return the account's kernels named `launch-…` that this spool does not know."""
        found = self._spool.segments.unknown().items()
        return [UnknownResource("kernel", ref, at, f"kaggle kernels delete {ref}") for ref, at in found]

    def discard(self, thing: RunResource | SharedResource) -> bool:
        """Delete a kernel or a dataset. Return whether it is gone."""
        segments = self._spool.segments
        if isinstance(thing, SharedResource):
            return segments.service.delete_tree(thing.name)
        return segments.discard(LeftoverSegment(thing.id, thing.run))

    @property
    def _spool(self) -> SpooledClient:
        if not isinstance(self.client, SpooledClient):
            raise HostError(self.client.host, f"{self.client.host}: only an account of Kaggle has kernels")
        return self.client


RUNTIME = KaggleRuntime
