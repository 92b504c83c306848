"""How the global batch falls into micro-batches: a guess from the card's memory and the model's shape."""

from __future__ import annotations

from typing import Literal

from launcher.errors import RefusedError
from launcher.planning.memory import sample_gb, usable_gb, weights_gb
from launcher.values.job import Batch
from launcher.values.model import Model
from launcher.values.plan import Split
from launcher.values.precision import Precision
from launcher.values.profile import Profile

GB_A_SAMPLE = 3.0
"""Memory set aside for one sample of a model that is not known, in GB: that of a few billion parameters."""


def split(
    profile: Profile,
    batch: Batch,
    model: Model | None,
    method: Literal["lora", "full"],
    precision: Precision,
    tokens: int,
) -> Split:
    """Return the split of `batch` on a profile's cards: the largest micro-batch that divides a card's share and should fit.

    `precision` is the rung that it is for, `tokens` a sample's length. Without a known memory (CPU, Apple) the job's
    own wish decides, else the whole share. Raises RefusedError where the cards cannot have equal shares.
    """
    share, rest = divmod(batch.global_size, profile.count)
    if rest:
        raise RefusedError(
            f"a global batch of {batch.global_size} does not divide among {profile.count} cards ({profile.title})\n"
            f"  for example   --set batch.global={batch.global_size - rest or profile.count}"
        )
    limit = min(batch.micro or share, share)
    room = usable_gb(profile)
    if room is not None and model is not None:
        free = room - weights_gb(model, method, precision)
        limit = min(limit, max(1, int(free / sample_gb(model, precision, tokens))))
    elif profile.memory_gb is not None:
        limit = min(limit, max(1, int(profile.memory_gb / GB_A_SAMPLE)))
    micro = next(size for size in range(limit, 0, -1) if share % size == 0)
    return Split(
        global_batch=batch.global_size, ranks=profile.count, micro_batch=micro, accumulation=share // micro
    )
