"""Slurm: a run is a job of the cluster, which the agent on the login node submits; the agent in the job trains."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.runtimes.native import Native
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan
from launcher.values.record import RuntimeRecord

IN_JOB = "job"


class Slurm(Native):
    """Runs as jobs of a cluster. The host's desk is that of its login node."""

    name = "slurm"

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record for a cluster; `None` for any other host."""
        del facts
        return RuntimeRecord(kind=cls.name) if host.slurm is not None else None

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
        """Make the run's folder on the login node. No card is leased, and none on record: Slurm gives them to the job."""
        del gpus, count, any_of, queues
        self.desk.preparation.create(run, plan, self.record.kind, None, None, None, None, queues=False)
        return ()

    def needs(self, plan: Plan) -> str | None:
        """Return `environment` for a plan whose environment the login node makes."""
        is_made_in_job = plan.slurm is not None and plan.slurm.build == IN_JOB
        return None if is_made_in_job else super().needs(plan)


RUNTIME = Slurm
