"""Recover: give a waiting run the missing input, and continue an interrupted one.

The run stays the same run.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.base.runtime import ResumeInputs
from launcher.backends.registry import backend_of
from launcher.backends.runtimes import open_for_run
from launcher.config import build_settings, env_file, secret_values
from launcher.config.lookup import Lookup
from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import runs_folder
from launcher.errors import LaunchError, UsageError
from launcher.rental import records
from launcher.runs.follow.evidence import diagnosis, why_failed, words
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary, summary_of
from launcher.runs.locating import locate
from launcher.runs.rented import machine_gone
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.runs.rented.lost_machines import reach
from launcher.runs.resume.secret_consent import check_consent
from launcher.runs.run_listing import listing
from launcher.transport.client.host_client import HostClient
from launcher.values.record import Reason, State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.rental.price import RentalChoice
    from launcher.runs.follow.view import Stage, View
    from launcher.values.plan import Plan
    from launcher.values.reported.answers import ResumedRun
    from launcher.values.software.image import BuildOptions

TO_RECOVER = (State.INTERRUPTED, State.WAITING)
"""The states in which a run continues only if a client recovers it."""


class RecoveryOutcome(StrEnum):
    """The outcome of recovering a run."""

    RECOVERED = "recovered"
    BY_ANOTHER = "by-another"
    NOTHING_TO_DO = "nothing-to-do"
    WAITING = "waiting"
    FAILED = "failed"
    PLANNED = "planned"


class Recovery(NamedTuple):
    """The outcome for a run, its present state and a message; for a preview, also the machine that would be rented."""

    run: str
    host: str
    outcome: RecoveryOutcome
    state: str
    words: str = ""
    rental: RentalChoice | None = None


class RecoverRequest(NamedTuple):
    """Secret files, and consent to secrets in a plan from the host.

    `is_dry`: only report the intended action.
    """

    env_files: Sequence[str] = ()
    is_sure: bool = False
    is_dry: bool = False


def recover(word: str, host_name: str | None, request: RecoverRequest, view: View) -> Recovery:
    """Recover the run that a word means, or report that recovery is not needed.

    Raises UsageError for a run that has ended or a secret that is not set here, HostError, and RunError.
    """
    host, local_copy = locate(word, host_name)
    if words := move_records.elsewhere(local_copy):
        raise UsageError(words)
    local_copy.check_not_freed()
    with reach(host, local_copy) as client:
        return recover_on(client, local_copy, request, view)


def _is_rented(host: str) -> bool:
    """Return whether a host rents machines for its runs: once a machine is gone, only this client knows the runs on it."""
    found = Lookup().host(host)
    return backend_of(found).running.rental(found) is not None


def recover_all(host_name: str | None, request: RecoverRequest, view: View) -> list[Recovery]:
    """Recover all waiting or interrupted runs of this client, or of one host; a failure does not stop the others.

    A run whose host does not answer counts as failed, whatever its last known state was.
    """
    found = []
    gone = records.gone_machines()
    asks_few = host_name is not None and not _is_rented(host_name)
    for row in listing(host_name, TO_RECOVER if asks_few else (), here=host_name is None):
        run, state = row.summary.run, row.summary.state
        if row.move is not None:
            continue  # its successor has a separate row
        if run in gone and not is_terminal(state):
            words = machine_gone.gone(LocalCopy(run, runs_folder())) or ""
            found.append(Recovery(run, row.host, RecoveryOutcome.FAILED, state, words))
            continue
        if row.is_unreachable:
            found.append(Recovery(run, row.host, RecoveryOutcome.FAILED, "unreachable", row.problem or ""))
            continue
        if row.problem is not None or state not in TO_RECOVER:
            continue
        try:
            found.append(recover(run, None if host_name is None else row.host, request, view))
        except LaunchError as error:
            found.append(Recovery(run, row.host, RecoveryOutcome.FAILED, state, str(error)))
    return found


def recover_to_follow(client: HostClient, local_copy: LocalCopy, view: View) -> RecoveryOutcome:
    """Recover a run that is about to be followed, if necessary; return the outcome."""
    return _recover_to_follow(client, local_copy, known_summary(client, local_copy.run), view)


def show_and_recover(client: HostClient, local_copy: LocalCopy, view: View) -> RecoveryOutcome:
    """Recover a run that is not shown yet, if necessary.

    A live run's present state is shown before its history is read.
    """
    summary = known_summary(client, local_copy.run)
    if summary.state not in TO_RECOVER and not is_terminal(summary.state):
        view.ahead(summary, local_copy.record.plan())
    return _recover_to_follow(client, local_copy, summary, view)


def _recover_to_follow(
    client: HostClient, local_copy: LocalCopy, summary: Summary, view: View
) -> RecoveryOutcome:
    if summary.state not in TO_RECOVER:
        return RecoveryOutcome.NOTHING_TO_DO
    return _recover(client, local_copy, summary, RecoverRequest(), view).outcome


def recover_on(client: HostClient, local_copy: LocalCopy, request: RecoverRequest, view: View) -> Recovery:
    """Recover one run over an open host client. Raises the errors of `recover`."""
    summary = known_summary(client, local_copy.run)
    run, host = local_copy.run, client.host
    if is_terminal(summary.state):
        if elsewhere := move_records.elsewhere(local_copy):
            raise UsageError(elsewhere)
        words = f"{run} has {summary.state}: only a run that has not ended can be recovered"
        raise UsageError(f"{words}\n  {_new_run(client, local_copy)}")
    if summary.state not in TO_RECOVER:
        _note_unread(run, request, view)
        return Recovery(run, host, RecoveryOutcome.NOTHING_TO_DO, summary.state)
    if request.is_dry:
        words = f"continues: it is {summary.state}{f' ({summary.reason})' if summary.reason else ''}; nothing was sent"
        return Recovery(run, host, RecoveryOutcome.PLANNED, summary.state, words)
    return _recover(client, local_copy, summary, request, view)


def _new_run(client: HostClient, local_copy: LocalCopy) -> str:
    """Return the command for a new run after an ended one: from its last checkpoint, if it has any."""
    refresh(client, local_copy)
    if local_copy.record.has_checkpoint:
        return f"a new run from its last checkpoint   launch resume {local_copy.short}"
    from launcher.copy.request import new_launch  # it loads planning, and few commands need this

    return f"it left no checkpoint: a new run from its start   {new_launch(local_copy)}"


def _note_unread(run: str, request: RecoverRequest, view: View) -> None:
    """Note that a secret file was not needed, because the run keeps the secrets that it had."""
    if request.env_files:
        view.note(f"{run}: --env-file was not read: its host has the run's secrets, and did not ask for them")


def _recover(
    client: HostClient, local_copy: LocalCopy, summary: Summary, request: RecoverRequest, view: View
) -> Recovery:
    """Continue a waiting or interrupted run; return the outcome."""
    run, host = local_copy.run, client.host
    resumed = _resume(client, local_copy, summary, request, view)
    if resumed.state in TO_RECOVER and resumed.is_ours:
        return Recovery(run, host, RecoveryOutcome.WAITING, resumed.state, _needs(summary_of(client, run)))
    if not resumed.is_ours:
        by = f"by {resumed.by}" if resumed.by is not None else ""
        return Recovery(run, host, RecoveryOutcome.BY_ANOTHER, resumed.state, by)
    if resumed.state in (State.FAILED, State.STOPPED):  # it cannot continue, and has ended in this state
        words = _why_ended(summary_of(client, run), local_copy)
        return Recovery(run, host, RecoveryOutcome.FAILED, resumed.state, words)
    return Recovery(run, host, RecoveryOutcome.RECOVERED, resumed.state)


def _resume(
    client: HostClient, local_copy: LocalCopy, summary: Summary, request: RecoverRequest, view: View
) -> ResumedRun:
    """Have the host continue a run.

    Slow steps are shown as stages: building an image, and proving that the old processes are dead.
    """

    def plan() -> Plan:
        refresh(client, local_copy)
        return local_copy.whole_plan()

    is_asked = False

    def secrets(_missing: Sequence[str]) -> Mapping[str, str]:
        from launcher.planning.assembly import job_of  # few runs have secrets

        nonlocal is_asked
        is_asked = True
        job = job_of(plan())
        if not request.is_sure:  # consent covers all secrets, not only those that the host reports as missing
            check_consent(job.secrets, local_copy, client.host, view, "recover")
        values = secret_values.values(job, env_file.read_all(request.env_files))
        if records.rented_for(local_copy.run) is not None:
            check_key_is_not_sent(client.host, job, values)
        return values

    def build() -> BuildOptions:
        return build_settings.read(local_copy.host(), os.environ)

    with contextlib.ExitStack() as shown, open_for_run(client, summary) as runtime:
        stages: dict[str, Stage] = {}

        def stage(name: str) -> Stage:
            if name not in stages:  # a stage is shown only for a step that takes time
                stages[name] = shown.enter_context(view.stage(name))
            return stages[name]

        def say(step: str) -> None:
            image = local_copy.whole_plan().image
            stage("image").text = image.name if image else None
            stage("image").progress(step)

        def wait(step: str) -> None:
            stage("wait").text = step
            stage("wait").progress(step)

        needs = ResumeInputs((summary.attempt or 1) + 1, plan, build, secrets, say, wait, _client())
        resumed = runtime.resume(local_copy.run, needs)
    if not is_asked:
        _note_unread(local_copy.run, request, view)
    return resumed


def _client() -> str:
    """Return the name that other clients are shown for this client: its user and its machine."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (OSError, KeyError):  # no name for this user
        return platform.node()


def _why_ended(summary: Summary | None, local_copy: LocalCopy) -> str:
    """Return why a run has ended instead of continuing, and the command for a new run if it can never continue."""
    if summary is None:
        return ""
    why = why_failed(summary.evidence)
    words = f"{summary.state}: {summary.reason}" + (f"; {why}" if why else "")
    if summary.reason != Reason.NOT_RESTARTABLE:
        return words
    from launcher.copy.request import new_launch  # it loads planning, and few commands need this

    return f"{words}\n  from its start   {new_launch(local_copy)}"


def _needs(summary: Summary | None) -> str:
    """Return the input that a run still waits for, and the way to provide it."""
    if summary is None:
        return ""
    mend = diagnosis(summary.evidence).get("mend")
    return "; ".join([*words(summary.evidence), *([mend] if mend else [])])
