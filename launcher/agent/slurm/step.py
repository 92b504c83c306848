"""The agent's verb `step RUN`: `supervise` as a step of a job, below Slurm's own process for that step."""

from __future__ import annotations

import os
from typing import List

from ..system import bearers, process
from ..training import attempts


def main(arguments: List[str]) -> int:
    """Make attempts of a run.

    Slurm's step process may adopt the orphans of the attempts' processes, so it is recorded as the adopter.
    """
    parent = process.find(os.getppid())
    if parent is not None:
        os.environ[bearers.OF_ADOPTER] = bearers.as_adopter(parent)
    return attempts.main(arguments)
