"""Native: an environment on the host, under a keeper of ours."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.runtimes.runtime import Runtime, Say, gpus_of
from launcher.spec.plan import Plan


class Native(Runtime):
    """Runs as processes of the host's own."""

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
        """Make the run's folder on the host, with its plan, its cards (UUIDs) and the interpreter that `env` means."""
        told = f"{plan.to_json()}\n".encode()
        answer = self.agent.call(
            "create",
            told,
            run=run,
            env=plan.env,
            gpus=list(gpus),
            cards=count,
            any_of=list(any_of or gpus),
            queues=queues,
        )
        return gpus_of(answer)

    def provide(self, plan: Plan, say: Say) -> str | None:
        """There is nothing to provide: the gate has seen the environment."""
        return None

    def start(self, run: str) -> None:
        """Start the run's keeper; return when its agent has begun the first attempt."""
        self.agent.call("start", run=run)
