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
from launcher.runs.follow.own_checkpoint import newest_own
from launcher.runs.pull.local_copies import LocalCopies
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

    `is_sure`: consent to secrets in a plan from the host, and to a high rental cost. `profile` is the card of
    a machine to rent.
    """

    settings: Sequence[str] = ()
    name: str | None = None
    wait_s: float = 0.0
    env_files: Sequence[str] = ()
    is_sure: bool = False
    profile: str | None = None


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


def changed_plan(parent: Plan, settings: Sequence[str], name: str | None, host: Host) -> Plan:
    """Return the plan of the resumed run. Raises BadFileError that names key and value."""
    data = job_of(parent).model_dump(mode="json", by_alias=True, exclude_none=True)
    for setting in settings:
        resolve.change(data, setting)
    job = build(Job, {**data, "name": name or parent.job}, file=FILE)
    keys = {key for setting in settings for key in keys_of(setting)}
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
    if state == State.SUCCEEDED and not request.settings:
        more = f"steps={2 * summary.step}" if summary.step and summary.step > 0 else "steps=…"
        again = f"from its start   {new_launch(parent)}"
        if parent.record.has_checkpoint:
            again = f"train further from its last checkpoint   launch resume {short} --set {more}     {again}"
        else:
            again += own_words(parent)
        raise UsageError(f"{parent.run} has succeeded: nothing is left to do\n  {again}")


def own_words(parent: LocalCopy) -> str:
    """Return the lines about a run's own checkpoint, which launch cannot resume from; empty if it has none here."""
    path = newest_own(LocalCopies(parent).files())
    if path is None:
        return ""
    return (
        f"\n  it saved its own   {path}: only the script can continue from that, by its own option"
        "\n  the next time      launch --adapt …     then every checkpoint of a Trainer is one to resume from"
    )


def refuse_moved(client: HostClient, parent: LocalCopy) -> None:
    """Raise UsageError for a run that continues elsewhere: a resume would train it twice."""
    if words := move_records.elsewhere(parent):
        raise UsageError(words)
    if (moved := client.runs.outlook(parent.run).moved) is not None:
        raise UsageError(move_records.moved_words(parent, moved))
