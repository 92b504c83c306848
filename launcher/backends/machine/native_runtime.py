"""Native: processes on the host, in a Python environment there, under a keeper process of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.runtime import Runtime, Say

if TYPE_CHECKING:
    from launcher.transport.client.host_client import HostClient
    from launcher.values.plan import Plan
    from launcher.values.software.environment import Environment


class Native(Runtime):
    """Runs as processes of the host."""

    name = "native"
    makes_environments = True

    def needs(self, plan: Plan) -> str | None:
        """Return `environment` for a plan that has one; otherwise the job uses an existing interpreter."""
        return "environment" if plan.environment is not None else None

    def provide(self, plan: Plan, say: Say) -> str:
        """Provide the plan's environment, building it if necessary."""
        if plan.environment is None:
            return super().provide(plan, say)
        return self._provide_by(self.client, plan, plan.environment, say)

    def _provide_by(self, client: HostClient, plan: Plan, environment: Environment, say: Say) -> str:
        """Provide the plan's environment through `client`, the client of the machine that builds it."""
        from launcher.backends.machine import environments
        from launcher.planning.software.environment_plan import maker_of  # few jobs need a new environment

        maker = maker_of(environment, self.facts, self.build) if self.facts is not None else None
        return environments.provide(client, plan, maker, self.build, say)

    def start(self, run: str) -> str | None:
        """Start the run's keeper. Return when its agent has begun the first attempt.

        A cluster's agent submits a job instead.
        """
        return self.client.preparation.start(run)


RUNTIME = Native
