"""Environments on a host: found, or made there, once however many ask."""

from __future__ import annotations

import json
import re
import time

from pydantic import ValidationError

from launcher.errors import AgentError, HostError, RefusedError
from launcher.hosts import Agent
from launcher.hosts.agent import printable
from launcher.planning import (
    build_failure,
    build_variables,
    environment_files,
    has_no_index,
    unfit,
    verifiable_torch,
)
from launcher.runtimes.making import Lines, alone, encoded
from launcher.runtimes.runtime import Say
from launcher.values.environment import Environment, Maker
from launcher.values.image import BuildOptions
from launcher.values.packages import Packages
from launcher.values.plan import Plan

REMOVING_S = 600.0
"""How long a host may take to write an environment to its disk, or to remove one, in seconds."""
KEPT_LINES = 200
_STEP = re.compile(r"(?:Collecting|Processing|Downloading|Building wheel|Installing collected packages).*")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


def provide(agent: Agent, plan: Plan, maker: Maker | None, settings: BuildOptions, say: Say) -> str:
    """See that the host has the plan's environment; return where it came from.

    One launch at a time makes it; the others wait. Its lock is held by the agent on the host, and goes with its client;
    what was not made to its end goes before. Raises HostError, and RefusedError for one whose torch is not for the card.
    """
    environment = plan.environment
    if environment is None:
        raise ValueError("the plan has no environment")
    if _is_there(agent, environment):
        return f"{environment.name}, there"
    lock = f"environment-{environment.name}"
    with alone(agent, lock, environment.name, say, deadline_s=REMOVING_S):
        if _is_there(agent, environment):
            return f"{environment.name}, made by another launch"
        if maker is None:
            words = (
                f"{agent.host}: environment {environment.name} is gone, and nothing there can make it again"
            )
            raise HostError(
                agent.host, f"{words}\n  install Python {environment.python} with venv there, or uv"
            )
        began = time.monotonic()
        packages = _make(agent, environment, maker, settings, say)
        _judge(agent, plan, environment, settings, packages)
        agent.call("seal_environment", name=environment.name, deadline_s=REMOVING_S)
        return f"{environment.name}, made in {time.monotonic() - began:.0f} s ({maker.kind}, Python {environment.python})"


def _is_there(agent: Agent, environment: Environment) -> bool:
    return agent.call("environment", name=environment.name, deadline_s=REMOVING_S).values.get("there") is True


def _make(agent: Agent, environment: Environment, maker: Maker, settings: BuildOptions, say: Say) -> Packages:
    files, secrets = environment_files(environment, settings)
    payload = {
        "files": encoded(files),
        "secrets": encoded(secrets),
        "settings": build_variables(settings),
    }
    index = settings.torch_index if settings.torch_index is not None else environment.torch_index
    lines = Lines(say, _step, KEPT_LINES)
    try:
        answer = agent.execute(
            "make_environment",
            json.dumps(payload).encode(),
            lambda _, data: lines.take(data),
            lambda: False,
            name=environment.name,
            maker=maker._asdict(),
            index=index or None,
            no_index=has_no_index(settings),
        ).values
    except AgentError as error:
        if _NO_ROOM.search(str(error)):
            raise _failed(agent, environment, "disk", [str(error)]) from error
        raise
    if answer.get("packages") is None:
        raise _failed(agent, environment, str(answer.get("step")), lines.last())
    try:
        return Packages.model_validate(answer["packages"])
    except ValidationError as error:
        raise HostError(
            agent.host, f"{agent.host}: environment {environment.name} did not say what is in it"
        ) from error


def _step(line: str) -> str | None:
    found = _STEP.match(line.strip())
    return found[0].partition(" (from ")[0] if found else None


def _judge(
    agent: Agent, plan: Plan, environment: Environment, settings: BuildOptions, packages: Packages
) -> None:
    """Raise RefusedError where what was made does not run on the card or does not fit together."""
    chosen = verifiable_torch(environment.torch, settings)
    problems = unfit(packages, None if plan.rehearsed else plan.profile, chosen, environment.requirements)
    if problems:
        text = "\n".join(f"  {printable(one)}" for one in problems)
        words = (
            f"{agent.host}: the environment of these requirements is not for {plan.profile.title}:\n{text}"
        )
        raise RefusedError(f"{words}\n  other versions in the job's requirements")


def _failed(agent: Agent, environment: Environment, step: str, lines: list[str]) -> HostError:
    found = build_failure(lines, agent.host)
    text = "\n".join(f"  | {line}" for line in found.lines)
    mend = found.mend.partition(", or base = ")[0]  # there is no image here
    if any(map(_NO_ROOM.search, lines)):
        mend = f"launch gc --host {agent.host}     makes some room, or set root = … for {agent.host}"
    words = f"{agent.host}: environment {environment.name} could not be made ({step}):\n{text}\n  {mend}"
    return HostError(agent.host, words)
