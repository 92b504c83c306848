"""A run that goes on from the newest checkpoint of one that has ended, on the same host, with some keys of its job changed."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from launcher.errors import (
    AgentError,
    BadFileError,
    ConnectionLostError,
    InterruptedRunError,
    LaunchError,
    RunError,
    UsageError,
)
from launcher.hosts import Agent, connect
from launcher.planning import changed, job_of
from launcher.runs import build_settings, resolve, secret_values
from launcher.runs.control import locate, open_docker, runs_of
from launcher.runs.following import refresh
from launcher.runs.launching import Started, begin, describe, look_at_cards, pass_gate_when_free, probe
from launcher.runs.mirror import Mirror
from launcher.runtimes.native import Native
from launcher.values.base import Record
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build, nearest
from launcher.values.plan import Plan
from launcher.values.record import Parent, State, is_terminal

if TYPE_CHECKING:
    from launcher.runs.view import View
    from launcher.runtimes import Runtime

FILE = "--set"
INHERIT_S = 3600.0
"""How long a host may take to prove a checkpoint, in seconds: it reads all of it."""
_KEPT = {
    "command": "its parent's command",
    "code": "its parent's code",
    "requirements": "its parent's packages",
    "image": "its parent's image",
    "model": "the model that its checkpoint is of",
    "method": "the weights that its checkpoint holds",
    "attention": "its parent's ladder of precisions",
    "compile": "its parent's ladder of precisions",
    "data": "its parent's data",
    "seed": "the order of its data",
    "batch.global": "the global batch, on which its data's order and its schedule hang",
    "secrets": "its parent's secrets",
}
"""What of a job a resumed run keeps, whatever is asked. What a plan does not hold it keeps as well."""
_TABLES = {"batch": ("global", "micro"), "data": ("train", "eval")}


class Asked(NamedTuple):
    """What a command line asks for: changes KEY=VALUE, the run's name, and how long it may wait for its card."""

    settings: Sequence[str] = ()
    name: str | None = None
    wait_s: float = 0.0


class _PassedOver(Record):
    checkpoint: str
    wrong: str


class _Inherited(Record):
    """What an agent answers when it has given a run what its parent left."""

    parent: Parent
    changes: dict[str, bool | int | float | str] = {}
    passed_over: list[_PassedOver] = []


def resume(word: str, host_name: str | None, asked: Asked, view: View) -> Started:
    """Start a run that goes on where the run that a word means has ended.

    Raises UsageError for a key that such a run cannot have, RunError or InterruptedRunError for a run that cannot be
    gone on with, RefusedError by the gate. When it raises, nothing is left on the host, as for a launch.
    """
    host, parent = locate(word, host_name)
    check_settings(asked.settings, host)
    name = None if asked.name is None else resolve.checked_name(asked.name)
    with view.stage("connect") as stage:
        agent = connect(host)
        stage.text = agent.about
    try:
        summary = _ended(agent, parent, asked)
        refresh(agent, parent)
        before = parent.whole_plan()
        plan = changed_plan(before, asked.settings, name, host)
        secrets = secret_values.values(job_of(plan))
        there = host.model_copy(update={"environment": plan.host_environment})
        with view.stage("probe") as stage:
            facts = probe(agent, there, job_of(plan))
            stage.text = describe(facts)
        view.head(plan)
        deadline = time.monotonic() + asked.wait_s
        facts = pass_gate_when_free(agent, plan, facts, there, job_of(plan), view, deadline)
        look = look_at_cards(agent, plan, facts, there, job_of(plan))
        with _runtime(agent, host, plan, facts, summary) as runtime:
            keys = sorted({key for setting in asked.settings for key in _keys_of(setting)})
            fill = functools.partial(_inherit, agent, parent, host, view, keys)
            return begin(runtime, host, plan, look, secrets, view, "resume", fill, deadline)
    except BaseException:
        agent.close()
        raise


def check_settings(settings: Sequence[str], host: Host) -> None:
    """Raise UsageError for a change of what a resumed run keeps, BadFileError for a key or a value that no job has."""
    data: dict[str, Any] = {"name": "a", "command": ["a"]}
    for setting in settings:
        for key in _keys_of(setting):
            _check_key(key, setting, host)
        resolve.change(data, setting)
    build(Job, data, file=FILE)


def _check_key(key: str, setting: str, host: Host) -> None:
    top, _, rest = key.partition(".")
    if top not in Job.model_fields or (rest and rest not in _TABLES.get(top, (rest,))):
        kept = {*_KEPT, "name"}
        names = [name for name in Job.model_fields if name in Plan.model_fields and name not in kept]
        allowed = [*(f"{name}.NAME" if name == "settings" else name for name in names), "batch.micro"]
        words = f"{FILE}: unknown key '{key}'{nearest(key, allowed)}"
        raise BadFileError(f"{words}\n  allowed: {', '.join(allowed)}")
    if top == "name":
        raise UsageError(f"{FILE} {setting}: a resumed run is named by --name")
    is_planned = top in Plan.model_fields or top in _TABLES
    kept_as = _KEPT.get(key) or _KEPT.get(top) or (None if is_planned else f"its parent's {top}")
    if kept_as is not None:
        raise UsageError(
            f"{FILE} {setting}: a resumed run keeps {kept_as}\n"
            f"  another one is a new run   launch --host {host.name} {FILE} {setting} …"
        )


def _keys_of(setting: str) -> list[str]:
    """Return the keys that a change touches: those of a table where one is given whole."""
    told: dict[str, Any] = {}
    key = resolve.change(told, setting)
    value = told.get(key)
    return [f"{key}.{name}" for name in value] if isinstance(value, dict) and key in _TABLES else [key]


def changed_plan(parent: Plan, settings: Sequence[str], name: str | None, host: Host) -> Plan:
    """Return the plan of the run that goes on. Raises BadFileError that names key and value."""
    data = job_of(parent).model_dump(mode="json", by_alias=True, exclude_none=True)
    for setting in settings:
        resolve.change(data, setting)
    job = build(Job, {**data, "name": name or parent.job}, file=FILE)
    keys = {key for setting in settings for key in _keys_of(setting)}
    return changed(parent, job, keys, host.name)


def _ended(agent: Agent, parent: Mirror, asked: Asked) -> dict[str, Any]:
    """Return the summary of a run that may be gone on with, as far as its state says."""
    summary = next(iter(runs_of(agent, parent.run)), None)
    short = parent.short
    if summary is None:
        raise RunError(f"{agent.host} has no run {parent.run}: removed there?")
    state = summary.get("state")
    if state in (State.INTERRUPTED, State.WAITING):
        raise InterruptedRunError(
            f"{parent.run} is {state}: it has not ended\n  it goes on by itself   launch attach {short}"
        )
    if not is_terminal(state):
        raise RunError(
            f"{parent.run} is {state}: it has not ended\n"
            f"  end it   launch stop {short}     or follow it   launch attach {short}"
        )
    if state == State.SUCCEEDED and not asked.settings:
        step = summary.get("step")
        more = f"steps={2 * step}" if isinstance(step, int) and step > 0 else "steps=…"
        raise UsageError(
            f"{parent.run} has succeeded: there is nothing left to do\n"
            f"  train on   launch resume {short} --set {more}"
        )
    return summary


def _runtime(agent: Agent, host: Host, plan: Plan, facts: Facts, summary: dict[str, Any]) -> Runtime:
    """Return the parent's runtime, open: the very engine that has its image."""
    settings = build_settings.read(host, os.environ)
    if plan.runtime == "native":
        return Native(agent, facts, settings)
    return open_docker(agent, summary["engine"], settings)


def _inherit(
    agent: Agent, parent: Mirror, host: Host, view: View, asked: Sequence[str], child: Mirror
) -> str:
    """Have the host give a run what its parent left; say what that is. `asked` are the keys that were set."""
    try:
        answer = agent.call(
            "inherit", run=child.run, parent=parent.run, asked=list(asked), deadline_s=INHERIT_S
        )
        told = _Inherited.model_validate(answer.values)
    except AgentError as error:
        raise _explained(error, parent, host) from error
    except ConnectionLostError as error:
        raise ConnectionLostError(
            error.host, f"{error}\n  no run was begun   the same command again"
        ) from error
    except ValidationError as error:
        raise RunError(f"{agent.host} did not say what {parent.run} left") from error
    for one in told.passed_over:
        view.note(f"{one.checkpoint} passed over: {one.wrong}")
    if told.changes:
        words = ", ".join(f"{name} {value}" for name, value in sorted(told.changes.items()))
        view.note(f"what remedies made of the plan holds on: {words}")
    step = told.parent.step
    return f"{told.parent.checkpoint} of {told.parent.run}, step {step}; code and data as they lie there"


def _explained(error: AgentError, parent: Mirror, host: Host) -> LaunchError:
    """Return what the agent said against a parent as the error that it is, with what to do."""
    words, short = str(error), parent.short
    if error.code == "steps":
        return UsageError(f"{words}\n  train on   launch resume {short} --set steps=…")
    if error.code in ("no-checkpoint", "cannot-resume", "lost"):
        return RunError(f"{words}\n  begin anew   launch --host {host.name} …")
    if error.code in ("not-ended", "held", "changed"):
        return RunError(f"{words}\n  look   launch ps     again   launch resume {short}")
    return error
