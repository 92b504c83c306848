"""How the global batch falls into micro-batches. A first version: it guesses from the card's memory alone."""

from __future__ import annotations

from launcher.errors import RefusedError
from launcher.spec.job import Batch
from launcher.spec.plan import Split
from launcher.spec.profile import Profile

GB_A_SAMPLE = 3.0
"""Memory set aside for one sample of the micro-batch, in GB: a cautious guess until the model is known."""


def split(profile: Profile, batch: Batch) -> Split:
    """Return the split of `batch` on a profile's cards: the largest micro-batch that divides a card's share and should fit.

    Without a known memory (CPU, Apple) the job's own wish decides, else the whole share. Raises RefusedError where the
    cards cannot have equal shares.
    """
    share, rest = divmod(batch.global_size, profile.count)
    if rest:
        raise RefusedError(
            f"a global batch of {batch.global_size} does not divide among {profile.count} cards ({profile.title})"
        )
    limit = min(batch.micro or share, share)
    if profile.memory_gb is not None:
        limit = min(limit, max(1, int(profile.memory_gb / GB_A_SAMPLE)))
    micro = next(size for size in range(limit, 0, -1) if share % size == 0)
    return Split(
        global_batch=batch.global_size, ranks=profile.count, micro_batch=micro, accumulation=share // micro
    )
