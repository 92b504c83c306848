"""Turn this process into one rank of the job: `python -m launcher_worker train.py ...`, started by `start_ranks`.

Each rank sees its own card only, as number 0. `torchrun --virtual-local-rank` does the same, but older
versions lack it. Since LOCAL_RANK is 0 in every rank, only RANK identifies the main process.
"""

from __future__ import annotations

import os
import sys
from typing import List


def become_rank(arguments: List[str]) -> None:
    """Replace this process with `python ARGUMENTS`, limited to the card of its local rank."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = cards.split(",")[int(os.environ["LOCAL_RANK"])]
        os.environ["LOCAL_RANK"] = "0"
    # The variables PET_* configure this node's torchrun. A torchrun started by the script must not read them.
    for name in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[name]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - the command of the job


if __name__ == "__main__":
    become_rank(sys.argv[1:])
