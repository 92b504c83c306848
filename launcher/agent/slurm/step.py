"""The agent's verb `step RUN`: `supervise` as a step of a job, below Slurm's own process for that step."""

from __future__ import annotations

import os
from typing import List

from ..system import process, token_processes
from ..training import attempts
from .job_script import take_variables_of_script


def main(arguments: List[str]) -> int:
    """Make attempts of a run.

    Slurm's step process may adopt the orphans of the attempts' processes, so it is recorded as the adopter. An `srun`
    of the training sees the variables of the job, and not those of the agent's step.
    """
    parent = process.find(os.getppid())
    if parent is not None:
        os.environ[token_processes.OF_ADOPTER] = token_processes.as_adopter(parent)
    take_variables_of_script()
    return attempts.main(arguments)
