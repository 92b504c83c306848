"""Environments on a host: find or make one. One launch makes an environment for all launches that need it."""

from __future__ import annotations

import json
import re
import time

from launcher.backends.base.making import OutputLines, alone, encoded
from launcher.backends.base.runtime import Say
from launcher.base.text import printable
from launcher.errors import AgentError, HostError, MalformedAnswerError, RefusedError
from launcher.planning.software.build_failure import build_failure, indexes
from launcher.planning.software.environment_plan import build_variables, environment_files, has_no_index
from launcher.planning.software.wheel_choice import unfit, unimported_torch, verifiable_torch
from launcher.transport.client.host_client import HostClient
from launcher.values.plan import Plan
from launcher.values.profile import Profile
from launcher.values.software.environment import Environment, EnvironmentBuilder
from launcher.values.software.image import BuildOptions
from launcher.values.software.packages import InstalledPackages

KEPT_LINES = 200
_STEP = re.compile(
    r"(?:Collecting|Processing|Downloading|Building|Installing collected packages|(?:Resolved|Prepared|Installed) \d).*"
)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


def provide(
    client: HostClient, plan: Plan, maker: EnvironmentBuilder | None, build: BuildOptions, say: Say
) -> str:
    """Provide the plan's environment on the host. Return its source, in words.

    One launch at a time makes it; the others wait. The agent holds the lock. When its client disconnects, the
    agent releases the lock and removes an unfinished environment. Raises HostError, and RefusedError if torch
    is not for the card.
    """
    environment = plan.environment
    if environment is None:
        raise ValueError("the plan has no environment")
    if client.making.has_environment(environment.name):
        return f"{environment.name}, already there"
    with alone(client, f"environment-{environment.name}", environment.name, say):
        if client.making.has_environment(environment.name):
            return f"{environment.name}, made by another launch"
        if maker is None:
            words = f"{client.host}: environment {environment.name} is gone, and the host has no program that can make it again"
            raise HostError(
                client.host, f"{words}\n  install Python {environment.python} with venv on the host, or uv"
            )
        began = time.monotonic()
        card = None if plan.rehearsed else plan.profile
        packages, by = _make(client, environment, maker, build, card, say)
        _check(client, plan, environment, build, packages)
        client.making.seal_environment(environment.name)
        return f"{environment.name}, made in {time.monotonic() - began:.0f} s (by {by}, Python {environment.python})"


def _make(
    client: HostClient,
    environment: Environment,
    maker: EnvironmentBuilder,
    build: BuildOptions,
    card: Profile | None,
    say: Say,
) -> tuple[InstalledPackages, str]:
    """Have the host make an environment. Return its packages, and the program that installed them."""
    files, secrets = environment_files(environment, build)
    payload = {
        "files": encoded(files),
        "secrets": encoded(secrets),
        "settings": build_variables(build),
    }
    index = build.torch_index if build.torch_index is not None else environment.torch_index
    lines = OutputLines(say, _step, KEPT_LINES)
    try:
        made = client.making.make_environment(
            environment.name,
            maker,
            json.dumps(payload).encode(),
            lambda _, data: lines.take(data),
            index=index or None,
            no_index=has_no_index(build),
            unimported=unimported_torch(environment.torch, build, card),
        )
    except MalformedAnswerError as error:
        raise HostError(
            client.host, f"{client.host}: environment {environment.name} did not report its packages"
        ) from error
    except AgentError as error:
        if _NO_ROOM.search(str(error)):
            raise _failed(client, environment, "disk", [str(error)], build) from error
        raise
    if made.packages is None:
        raise _failed(client, environment, str(made.step), lines.last(), build)
    return made.packages, made.by or "pip"


def _step(line: str) -> str | None:
    match = _STEP.match(line.strip())
    return match[0].partition(" (from ")[0] if match else None


def _check(
    client: HostClient, plan: Plan, environment: Environment, build: BuildOptions, packages: InstalledPackages
) -> None:
    """Raise RefusedError if the packages do not run on the card or do not fit together."""
    chosen = verifiable_torch(environment.torch, build)
    problems = unfit(packages, None if plan.rehearsed else plan.profile, chosen, environment.requirements)
    if problems:
        text = "\n".join(f"  {printable(problem)}" for problem in problems)
        words = (
            f"{client.host}: the environment of these requirements is not for {plan.profile.title}:\n{text}"
        )
        raise RefusedError(f"{words}\n  other versions in the job's requirements")


def _failed(
    client: HostClient, environment: Environment, step: str, lines: list[str], build: BuildOptions
) -> HostError:
    failure = build_failure(lines, client.host, indexes(environment.torch_index, build))
    text = "\n".join(f"  | {line}" for line in failure.lines)
    # An environment has no base image, and its build has no separate network.
    mend = failure.mend.partition(", or base = ")[0].replace('network = "host", ', "")
    if any(map(_NO_ROOM.search, lines)):
        mend = f"launch gc --host {client.host}     makes some room, or set root = … for {client.host}"
    why = f": {failure.what}" if failure.what else ""
    words = (
        f"{client.host}: environment {environment.name} could not be made ({step}){why}:\n{text}\n  {mend}"
    )
    return HostError(client.host, words)
