"""The batch of a script that is adapted: the plan's if the job names one, else the script's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Tuple

from ..values import knobs


def adapted_split(micro_batch: int, accumulation: int) -> Tuple[int, int]:
    """Return micro-batch and accumulation in force, for those that a script asks for.

    The product stays the script's, unless the job names a batch. After running out of memory the agent halves the
    micro-batch; it is halved here as often, as far as it can be.
    """
    values = knobs()
    said = json.loads(Path(os.environ["LAUNCH_ATTEMPT"], "attempt.json").read_text(encoding="utf-8"))["adapt"]
    if said["split"]:
        split = values.split
        return split.micro_batch, split.accumulation
    values.consume("split")
    for _ in range(said["halvings"]):
        if micro_batch % 2:
            break
        micro_batch, accumulation = micro_batch // 2, accumulation * 2
    return micro_batch, accumulation
