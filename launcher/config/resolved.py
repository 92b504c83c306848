"""A request as values: its names and files resolved, before any host is contacted."""

from __future__ import annotations

from typing import NamedTuple

from launcher.config.env_file import HiddenValues
from launcher.config.resolve import Task
from launcher.config.secret_values import NO_VALUES
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.model import Model
from launcher.values.plan import Commit, MachineChoice
from launcher.values.precision import PrecisionRequest
from launcher.values.profile import Profile


class Resolved(NamedTuple):
    """The request as values.

    The probe decides between several `profiles`, or between all known ones if none is named. `model` has the
    facts about the job's model that are known here. `rehearsed_on` is the CPU on which a card's plan is rehearsed.
    `values` are the secrets of the job that come from --env-file. `machine` is the requested machine, for a
    backend that lets the client choose one. `commit` is the git commit of the code, known once its upload is.
    `after` are the runs that must end before this one starts, as `RUN:ok` or `RUN:any`.
    """

    host: Host
    profiles: tuple[Profile, ...]
    task: Task
    asked: PrecisionRequest
    model: Model | None
    rehearsed_on: Profile | None
    gpus: str | None
    values: HiddenValues = NO_VALUES
    teacher: Model | None = None
    machine: MachineChoice | None = None
    commit: Commit | None = None
    after: tuple[str, ...] = ()

    @property
    def job(self) -> Job:
        """The job to run."""
        return self.task.job
