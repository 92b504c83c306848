"""The agent's verb `step RUN`: `supervise` as a step of a job, below Slurm's own process for that step."""

from __future__ import annotations

import os
from typing import List

from ..system import process, token_processes
from ..training import attempts


def main(arguments: List[str]) -> int:
    """Make attempts of a run.

    Slurm's step process may adopt the orphans of the attempts' processes, so it is recorded as the adopter.
    """
    parent = process.find(os.getppid())
    if parent is not None:
        os.environ[token_processes.OF_ADOPTER] = token_processes.as_adopter(parent)
    return attempts.main(arguments)
