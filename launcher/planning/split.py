"""How the global batch falls into micro-batches. A first version: it guesses from the card's memory alone."""

from __future__ import annotations

from launcher.spec.job import Batch
from launcher.spec.plan import Split
from launcher.spec.profile import Profile

GB_A_SAMPLE = 3.0
"""Memory set aside for one sample of the micro-batch, in GB: a cautious guess until the model is known."""


def split(profile: Profile, batch: Batch) -> Split:
    """Return the split of `batch` on a card: the largest micro-batch that divides it and should fit.

    Without a known memory (CPU, Apple) the job's own wish decides, else the whole batch.
    """
    limit = batch.micro or batch.global_size
    if profile.memory_gb is not None:
        limit = min(limit, max(1, int(profile.memory_gb / GB_A_SAMPLE)))
    micro = next(size for size in range(limit, 0, -1) if batch.global_size % size == 0)
    return Split(global_batch=batch.global_size, micro_batch=micro, accumulation=batch.global_size // micro)
