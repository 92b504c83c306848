"""The batch of an adapted script: the plan's if the job sets one, else the script's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Tuple

from ..values import knobs


def adapted_split(micro_batch: int, accumulation: int) -> Tuple[int, int]:
    """Return the micro-batch and accumulation in force, given those of the script.

    The job's batch is used if the job sets one; otherwise the product stays that of the script. After an
    out-of-memory error the agent requests a smaller micro-batch: this function halves the script's
    micro-batch once for each request, as long as it is even.
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
