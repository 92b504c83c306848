"""The agent's verb `step RUN`: `supervise` as a step of a job, below Slurm's own process for that step."""

from __future__ import annotations

import os
from typing import List

from ..system import bearers, process
from ..training import attempts


def main(arguments: List[str]) -> int:
    """Make attempts of a run. What they start is the run's up to the step's process, which may adopt their orphans."""
    parent = process.find(os.getppid())
    if parent is not None:
        os.environ[bearers.OF_ADOPTER] = bearers.as_adopter(parent)
    return attempts.main(arguments)
