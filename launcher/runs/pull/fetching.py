"""Pull by command, once or repeatedly until the run has ended, reopening a lost link."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, ConnectionLostError, RunError, UnreachableError
from launcher.runs.follow.following import LOST_LINKS, pause
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary
from launcher.runs.follow.view import Stage, View
from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint, note_asked, pull_checkpoint
from launcher.runs.pull.pulling import Choice, Pulled, came, pull
from launcher.runs.run_client import open_client
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import State, is_terminal

LOOK_AGAIN_S = 5.0
Value = TypeVar("Value")
SETTLED_S = 10.0
"""How long a file of a live run must be unchanged to count as finished, in seconds."""


def pull_once(host: Host, local_copy: LocalCopy, choice: Choice, view: View) -> Pulled:
    """Pull a run's files and its record. Raises UnreachableError if the host does not answer for a long time."""
    with view.stage("pull") as stage:
        pulled = _over_lost_links(
            host, local_copy, view, lambda client: _pull(client, local_copy, choice, stage)
        )
        stage.text = came(pulled)
    return pulled


def pull_one_checkpoint(host: Host, local_copy: LocalCopy, which: str, view: View) -> LocalCheckpoint:
    """Pull one checkpoint of a run.

    Raises RunError if the run does not have it, and the errors of `pull_once`.
    """
    with view.stage("pull") as stage:
        try:
            work = partial(_pull_checkpoint, local_copy=local_copy, which=which, stage=stage)
            home = _over_lost_links(host, local_copy, view, work)
        except AgentError as error:
            if error.code != "no-checkpoint":
                raise
            raise RunError(f"{error}\n  look   launch ls {local_copy.short}") from error
        stage.text = home.words
    note_asked(local_copy, home.checkpoint.name)
    return home


def _pull_checkpoint(client: HostClient, local_copy: LocalCopy, which: str, stage: Stage) -> LocalCheckpoint:
    refresh(
        client, local_copy
    )  # while its host does not answer, a run continues from a local checkpoint only with a local record
    return pull_checkpoint(client, local_copy, which, stage)


def pull_until_end(host: Host, local_copy: LocalCopy, choice: Choice, view: View) -> Pulled:
    """Pull the finished files of a live run again and again; once the run has ended, pull all files."""
    fetched = []
    with view.stage("pull") as stage:
        while True:
            is_over = _over_lost_links(host, local_copy, view, lambda client: _is_over(client, local_copy))
            current = choice._replace(settled_s=0.0 if is_over else SETTLED_S)
            pulled = _over_lost_links(
                host, local_copy, view, partial(_pull, local_copy=local_copy, choice=current, stage=stage)
            )
            fetched += pulled.fetched
            if is_over:
                pulled = pulled._replace(fetched=fetched, present=pulled.present - len(fetched))
                stage.text = came(pulled)
                return pulled
            stage.progress(f"{came(pulled._replace(fetched=fetched, present=0))}; waiting for more")
            time.sleep(LOOK_AGAIN_S)


def _pull(client: HostClient, local_copy: LocalCopy, choice: Choice, stage: Stage) -> Pulled:
    refresh(client, local_copy)
    return pull(client, local_copy, choice, stage)


def _is_over(client: HostClient, local_copy: LocalCopy) -> bool:
    summary = known_summary(client, local_copy.run)
    return is_terminal(summary.state) or summary.state in (State.WAITING, State.INTERRUPTED)


def _over_lost_links(
    host: Host, local_copy: LocalCopy, view: View, work: Callable[[HostClient], Value]
) -> Value:
    """Do some work with a host client; open another one if the link is lost, with growing pauses.

    Raises HostError if the host cannot be reached at all, or after LOST_LINKS consecutive losses.
    """
    lost = 0
    while True:
        try:
            with open_client(host, local_copy) as client:
                if lost:
                    view.back()
                return work(client)
        except UnreachableError as error:
            lost += 1
            if lost == LOST_LINKS or (lost == 1 and not isinstance(error, ConnectionLostError)):
                raise
            pause(view, error, lost)
