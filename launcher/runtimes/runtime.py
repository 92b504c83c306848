"""What a launch asks of a runtime, whichever it is."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from launcher.hosts import Agent
from launcher.hosts.agent import Answer
from launcher.values.plan import Plan

if TYPE_CHECKING:
    from launcher.runtimes.docker.engine import Engine

Say = Callable[[str], None]
"""Shows how far something that takes its time has come."""


class Runtime(ABC):
    """How runs of one host run. Use it in a `with`."""

    engine: Engine | None = None
    """The container engine that it uses, where it uses one."""

    def __init__(self, agent: Agent) -> None:
        """Use this agent, which stays its owner's to close."""
        self.agent = agent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what the runtime holds beside the agent."""

    @abstractmethod
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
        """Make the run's folder on the host, with its plan; lease it `count` of these cards (UUIDs), or all of them.

        Natively it may move to any of `any_of` later. Return those that it got. Raises AgentError `card-leased`, and makes nothing, where they are not to be had; who
        `queues` and asks again on the same connection gets them in turn.
        """

    @abstractmethod
    def provide(self, plan: Plan, say: Say) -> str | None:
        """See that there is what the run is to run in; return what it was, None where nothing is needed."""

    def entrust(self, run: str, secrets: Mapping[str, str]) -> None:
        """Put the values of a run's secrets on the host, where only this user's processes may read them."""
        self.agent.call("secrets", json.dumps(secrets).encode(), run=run)

    @abstractmethod
    def start(self, run: str) -> None:
        """Start the run; return when its agent has begun the first attempt."""


def gpus_of(answer: Answer) -> tuple[str, ...]:
    """Return the cards that a run got, by the agent's answer."""
    gpus = answer.values.get("gpus")
    return tuple(map(str, gpus)) if isinstance(gpus, list) else ()
