"""A request as values: what its names and files mean, before any host is asked."""

from __future__ import annotations

from typing import NamedTuple

from launcher.config.env_file import HiddenValues
from launcher.config.resolve import Task
from launcher.config.secret_values import NO_VALUES
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.machine_choice import MachineChoice
from launcher.values.model import Model
from launcher.values.precision import PrecisionRequest
from launcher.values.profile import Profile


class Resolved(NamedTuple):
    """The request as values. The probe decides between several `profiles`, or between all that are known if none is named.

    `model` is what is known here of the job's; `rehearsed_on` the CPU that a card's plan is tried on. `values` are those
    secrets of the job that --env-file gave. `machine` is what a backend is asked for that lets one choose.
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

    @property
    def job(self) -> Job:
        """The job."""
        return self.task.job
