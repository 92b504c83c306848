"""Native: an environment on the host, under a keeper of ours."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts import Agent
from launcher.planning import maker_of
from launcher.runtimes import environments
from launcher.runtimes.runtime import Runtime, Say, gpus_of
from launcher.values.facts import Facts
from launcher.values.image import BuildOptions
from launcher.values.plan import Plan


class Native(Runtime):
    """Runs as processes of the host's own."""

    def __init__(self, agent: Agent, facts: Facts, settings: BuildOptions | None = None) -> None:
        """Use this agent; `facts` say what can make an environment there, `settings` are for one that must be made."""
        super().__init__(agent)
        self._facts = facts
        self._settings = settings or BuildOptions()

    def close(self) -> None:
        """It holds nothing."""

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
        """Make the run's folder on the host, with its plan and its cards (UUIDs).

        Its interpreter is that of the plan's environment, else the one that the host's `environment` names.
        """
        told = f"{plan.to_json()}\n".encode()
        answer = self.agent.call(
            "create",
            told,
            run=run,
            env=plan.host_environment,
            gpus=list(gpus),
            cards=count,
            any_of=list(any_of or gpus),
            queues=queues,
        )
        return gpus_of(answer)

    def provide(self, plan: Plan, say: Say) -> str | None:
        """See that the plan's environment is there or is made; without one the gate has seen what is used."""
        if plan.environment is None:
            return None
        maker = maker_of(plan.environment, self._facts)
        return environments.provide(self.agent, plan, maker, self._settings, say)

    def start(self, run: str) -> None:
        """Start the run's keeper; return when its agent has begun the first attempt."""
        self.agent.call("start", run=run)
