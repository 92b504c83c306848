"""A run's requirements for a machine, whether it is the user's own or rented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Plan
from launcher.values.profile import Profile

PlanFor = Callable[[Profile, Facts], Plan]


class Wanted(NamedTuple):
    """A run's requirements for a machine.

    `plan_for` makes the plan for a card and the machine's expected facts. `like` are the profiles to prefer
    among the offers if `profiles` is empty. `run` is the run's id, None for a new one. `most_cents` is the
    maximum cost of the machine; None means the limit in its table.
    """

    host: Host
    profiles: Sequence[Profile]
    gpus: str | None
    job: Job
    plan_for: PlanFor
    like: Sequence[Profile] = ()
    is_sure: bool = False
    wait_s: float = 0.0
    run: str | None = None
    most_cents: int | None = None
