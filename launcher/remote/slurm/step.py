"""The agent's verb `step RUN`: `supervise` as a step of a job, whose orphans Slurm's own process adopts."""

from __future__ import annotations

import os
from typing import List

from ..system import bearers
from ..training import attempts


def main(arguments: List[str]) -> int:
    """Make attempts of a run; what they leave behind is known by who has adopted it."""
    os.environ[bearers.OF_ADOPTER] = bearers.words_of_adopter()
    return attempts.main(arguments)
