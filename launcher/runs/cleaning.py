"""What may go: a run that has ended, here and on its host; and what no run of a host names any more."""

from __future__ import annotations

import shutil
from typing import Annotated

from pydantic import Field, ValidationError

from launcher.errors import AgentError, RunError
from launcher.hosts import Agent
from launcher.runs.mirror import Mirror
from launcher.spec.base import Record

CLEANING_S = 600.0


class Item(Record):
    """A thing that no run of a host names: what it is, its path below the host's root, and the bytes it takes."""

    kind: str
    path: str
    bytes: Annotated[int, Field(ge=0)]


class _Items(Record):
    items: list[Item]


def remove(agent: Agent, mirror: Mirror, *, even_artifacts: bool) -> None:
    """Remove a run that has ended from its host, and its mirror here.

    Artifacts that were pulled may go from the host; those that were not, only on demand. A run that its host knows no
    more loses its mirror. Raises RunError for a run that has not ended, and for artifacts that lie nowhere else.
    """
    may_go = even_artifacts or mirror.artifacts.is_dir()
    try:
        agent.call("remove", run=mirror.run, artifacts=may_go, deadline_s=CLEANING_S)
    except AgentError as error:
        if error.code == "refused":
            mend = f"launch stop {mirror.short}     or   launch pull {mirror.short}     or   launch rm --force {mirror.short}"
            raise RunError(f"{error}\n  {mend}") from error
        if error.code != "no-run":
            raise
    with mirror.disk_errors(mirror.folder):
        if mirror.folder.exists():
            shutil.rmtree(mirror.folder)


def collect_garbage(agent: Agent, *, dry_run: bool) -> list[Item]:
    """Remove from a host what no run there names any more, unless `dry_run`; return what it was."""
    answer = agent.call("gc", dry_run=dry_run, deadline_s=CLEANING_S)
    try:
        return _Items.model_validate(answer.values, strict=True).items
    except ValidationError as error:
        raise RunError(f"{agent.host} sent what is no list of what may go") from error
