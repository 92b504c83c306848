"""The command prefix from the plan that runs a job in an image of its cluster.

See launcher/backends/slurm/apptainer.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List

from ..record.rundir import Run

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord

PYTHON = "python3"
"""The interpreter of a command in an image: the image's own."""


def has_image(plan: PlanRecord) -> bool:
    """Whether the command of a run starts in an image of its cluster."""
    return bool((plan.get("slurm") or {}).get("container"))


def words_of(run: Run, plan: PlanRecord, socket: str) -> List[str]:
    """Return the prefix of a run's command on this node, empty without an image.

    `socket` is the path of the workers' socket.
    """
    places = {"{root}": run.root, "{socket}": os.path.dirname(socket), "{code}": str(run.code)}
    words = (plan.get("slurm") or {}).get("container") or ()
    return [places.get(word, str(word)) for word in words]
