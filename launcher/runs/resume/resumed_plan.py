"""The plan of a resumed run: the keys that may change, and the states that allow a resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends import kinds
from launcher.backends.registry import backend_of
from launcher.base.toml import TomlTable
from launcher.config import resolve, secret_values
from launcher.copy import move_records
from launcher.copy.request import new_launch
from launcher.errors import BadFileError, InterruptedRunError, RunError, UsageError
from launcher.planning.assembly import changed, job_of
from launcher.runs.follow import evidence
from launcher.values.job import OF_ONE_KIND, Job
from launcher.values.parsing import build, nearest
from launcher.values.plan import Plan
from launcher.values.record import State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host

FILE = "--set"
_KEPT = {
    "command": "its parent's command",
    "code": "its parent's code",
    "requirements": "its parent's packages",
    "image": "its parent's image",
    "model": "its checkpoint's model",
    "teacher": "its model's teacher",
    "method": "its checkpoint's weights",
    "sharding": "its parent's division of the model among cards",
    "attention": "its parent's ladder of precisions",
    "compile": "its parent's ladder of precisions",
    "data": "its parent's data",
    "seed": "the order of its data",
    "batch.global": "the global batch, which decides the order of its data and its schedule",
    "secrets": "its parent's secrets",
}
"""The keys of a job that a resumed run always keeps from its parent, with their meaning."""
_NAMED = ("settings", "variables", *OF_ONE_KIND)
_TABLES = {
    "batch": ("global", "micro"),
    "data": ("train", "eval"),
    **{kind: tuple(table.model_fields) for kind, table in OF_ONE_KIND.items()},
}


class ResumeRequest(NamedTuple):
    """The options of a command line: changes KEY=VALUE, the run's name, the maximum wait, and files with secrets.

    `command` replaces the run's command, for a script that loads its own checkpoint by an option; empty keeps it.
    `is_sure`: consent to secrets in a plan from the host, and to a high rental cost. `profile` is the card of
    a machine to rent.
    """

    settings: Sequence[str] = ()
    name: str | None = None
    wait_s: float = 0.0
    env_files: Sequence[str] = ()
    is_sure: bool = False
    profile: str | None = None
    command: Sequence[str] = ()

    @property
    def keys(self) -> list[str]:
        """The changed keys of the job."""
        changed = {key for setting in self.settings for key in keys_of(setting)}
        return sorted(changed | {"command"} if self.command else changed)


def check_settings(settings: Sequence[str], host: Host) -> None:
    """Raise UsageError for a change of a key that a resumed run keeps, BadFileError for an invalid key or value of a job."""
    data: TomlTable = {"name": "a", "command": ["a"]}
    for setting in settings:
        for key in keys_of(setting):
            _check_key(key, setting, host)
        resolve.change(data, setting)
    build(Job, data, file=FILE)


def _check_key(key: str, setting: str, host: Host) -> None:
    top, _, rest = key.partition(".")
    if top not in Job.model_fields or (rest and rest not in _TABLES.get(top, (rest,))):
        kept = {*_KEPT, "name"}
        names = [name for name in Job.model_fields if name in Plan.model_fields and name not in kept]
        allowed = [*(f"{name}.NAME" if name in _NAMED else name for name in names), "batch.micro"]
        words = f"{FILE}: unknown key '{key}'{nearest(key, allowed)}"
        raise BadFileError(f"{words}\n  allowed: {', '.join(allowed)}")
    if top == "name":
        raise UsageError(f"{FILE} {setting}: a resumed run is named by --name")
    if top in OF_ONE_KIND and host.kind != top:
        raise UsageError(f"{FILE} {setting}: {host.name} is not {kinds.host_kind(top).title}")
    is_planned = top in Plan.model_fields or top in _TABLES
    kept_there = backend_of(host).planning.kept.get(key)
    kept_as = (
        _KEPT.get(key) or _KEPT.get(top) or kept_there or (None if is_planned else f"its parent's {top}")
    )
    if kept_as is not None:
        raise UsageError(
            f"{FILE} {setting}: a resumed run keeps {kept_as}\n"
            f"  for another value, start a new run   launch --host {host.name} {FILE} {setting} …"
        )


def keys_of(setting: str) -> list[str]:
    """Return the keys that a change touches: all keys of a table that is given whole."""
    table: TomlTable = {}
    key = resolve.change(table, setting)
    value = table.get(key)
    return [f"{key}.{name}" for name in value] if isinstance(value, dict) and key in _TABLES else [key]


def changed_plan(parent: Plan, request: ResumeRequest, name: str | None, host: Host) -> Plan:
    """Return the plan of the resumed run. Raises BadFileError that names key and value."""
    data = job_of(parent).model_dump(mode="json", by_alias=True, exclude_none=True)
    for setting in request.settings:
        resolve.change(data, setting)
    if request.command:
        data["command"] = list(request.command)
    job = build(Job, {**data, "name": name or parent.job}, file=FILE)
    keys = set(request.keys)
    if "on_end" in keys:  # the address in `on_end` may contain a secret that the parent did not have
        named = secret_values.with_names(job, ()).secrets
        job, keys = job.model_copy(update={"secrets": tuple(sorted(named))}), keys | {"secrets"}
    return backend_of(host).planning.changed(changed(parent, job, keys, host.name), job)


def check_ended(summary: Summary, parent: LocalCopy, request: ResumeRequest) -> None:
    """Raise InterruptedRunError, RunError or UsageError for a run whose state does not allow a resume."""
    short = parent.short
    state = summary.state
    if state in (State.INTERRUPTED, State.WAITING):
        raise InterruptedRunError(
            f"{parent.run} is {state}: it has not ended\n  continue it     launch recover {short}"
        )
    if not is_terminal(state):
        raise RunError(
            f"{parent.run} is {state}: it has not ended\n"
            f"  end it   launch stop {short}     or follow it   launch attach {short}"
        )
    if state == State.SUCCEEDED and not request.settings and not request.command:
        ended = parent.state()
        doubt = evidence.doubt(ended.evidence) if ended is not None else None
        more = f"steps={2 * summary.step}" if summary.step and summary.step > 0 else "steps=…"
        again = f"from its start   {new_launch(parent)}"
        if parent.record.has_checkpoint:
            again = f"train further from its last checkpoint   launch resume {short} --set {more}     {again}"
        elif (own := evidence.own_checkpoint(ended.evidence if ended is not None else None)) is not None:
            again += f"\n  train further from {own.path}, with your script's option that loads it   launch resume {short} -- COMMAND"
        left = f"in doubt, {doubt}" if doubt else "nothing is left to do"
        raise UsageError(f"{parent.run} has succeeded: {left}\n  {again}")


def refuse_moved(client: HostClient, parent: LocalCopy) -> None:
    """Raise UsageError for a run that continues elsewhere: a resume would train it twice."""
    if words := move_records.elsewhere(parent):
        raise UsageError(words)
    if (moved := client.runs.outlook(parent.run).moved) is not None:
        raise UsageError(move_records.moved_words(parent, moved))
