"""How much of the resources of its Slurm job a run has used, as `seff` shows it, from the kernel's own figures."""

from __future__ import annotations

import os
import resource
from typing import Dict

GIB = 2**30


def job_use(ran_s: float) -> Dict[str, float]:
    """Return the use of this start of the job in `ran_s` seconds; empty outside of a job.

    `cpu_percent` is the mean of all `cpus` on this node. `process_gib` is the memory of the largest process;
    `memory_gib` is what the job asked for, missing if it asked for none.
    """
    cpus = _number("SLURM_CPUS_ON_NODE")
    if not cpus or ran_s <= 0:
        return {}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "cpu_percent": round(100.0 * (used.ru_utime + used.ru_stime) / (ran_s * cpus), 1),
        "cpus": cpus,
        "process_gib": round(used.ru_maxrss * 1024 / GIB, 2),
    }
    asked_mib = _number("SLURM_MEM_PER_NODE") or _number("SLURM_MEM_PER_CPU") * cpus
    return {**found, "memory_gib": round(asked_mib / 1024, 2)} if asked_mib else found


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
