"""Native: an environment on the host, under a keeper of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from launcher.hosts import Agent
from launcher.spec.plan import Plan


def create(agent: Agent, run: str, plan: Plan, gpus: Sequence[str]) -> None:
    """Make the run's folder on the host, with its plan, its cards (UUIDs) and the interpreter that `env` means."""
    agent.call("create", f"{plan.to_json()}\n".encode(), run=run, env=plan.env, gpus=list(gpus))


def entrust(agent: Agent, run: str, secrets: Mapping[str, str]) -> None:
    """Put the values of a run's secrets on the host, where only this user's processes may read them."""
    agent.call("secrets", json.dumps(secrets).encode(), run=run)


def start(agent: Agent, run: str) -> None:
    """Start the run; return when its agent has begun the first attempt."""
    agent.call("start", run=run)
