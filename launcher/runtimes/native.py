"""Native: an environment on the host, under a keeper of ours."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.runtimes.runtime import Runtime, Say
from launcher.spec.plan import Plan


class Native(Runtime):
    """Runs as processes of the host's own."""

    def close(self) -> None:
        """It holds nothing."""

    def create(self, run: str, plan: Plan, gpus: Sequence[str]) -> None:
        """Make the run's folder on the host, with its plan, its cards (UUIDs) and the interpreter that `env` means."""
        self.agent.call("create", f"{plan.to_json()}\n".encode(), run=run, env=plan.env, gpus=list(gpus))

    def provide(self, plan: Plan, say: Say) -> str | None:
        """There is nothing to provide: the gate has seen the environment."""
        return None

    def start(self, run: str) -> None:
        """Start the run's keeper; return when its agent has begun the first attempt."""
        self.agent.call("start", run=run)
