"""The split: how the global batch is divided among cards, micro-batches and accumulation steps.

The global batch is the job's and never depends on the card. The micro-batch is the one that `launch verify`
found to fit, else an estimate from the card's memory and the model's shape. Example: a global batch of 64 on
two cards that each fit 4 samples is 2 x 4 x 8.
"""

from __future__ import annotations

from launcher.errors import UnequalSharesError
from launcher.planning.precision.memory import Training, needed_gb, usable_gb
from launcher.planning.precision.workload import Workload
from launcher.values.facts import Measured
from launcher.values.job import BatchSize, Method
from launcher.values.model import Model
from launcher.values.plan import Split
from launcher.values.precision import Precision
from launcher.values.profile import Profile

GB_A_SAMPLE = 3.0
"""Memory assumed for one sample of an unknown model, in GB: enough for a few billion parameters."""


def split(
    profile: Profile,
    batch: BatchSize,
    model: Model | None,
    method: Method,
    precision: Precision,
    workload: Workload,
    measured: Measured | None = None,
    ranks: int | None = None,
) -> Split:
    """Return the split with the largest micro-batch that divides a process's share and should fit in memory.

    A process's share is its part of the global batch. `ranks` is the number of training processes, by default
    one for each card of the profile. `precision` is the first rung, `measured` its measurement. If the memory
    is unknown (CPU, Apple) the micro-batch is the job's `batch.micro`, or the whole share if the job has none.
    Raises UnequalSharesError if the cards cannot have equal shares.
    """
    ranks = ranks or profile.count
    share, rest = divmod(batch.global_size, ranks)
    if rest:
        nodes = max(1, ranks // profile.count)
        cards = profile.title if nodes == 1 else f"{nodes} nodes with {profile.title}"
        raise UnequalSharesError(
            f"a global batch of {batch.global_size} does not divide among {ranks} cards ({cards})\n"
            f"  for example   --set batch.global={batch.global_size - rest or ranks}"
        )
    limit = min(batch.micro or share, share)
    room = usable_gb(profile)
    training = Training(model, method, workload) if model is not None else None
    known = measured.fits if measured is not None else 0
    if measured is not None and measured.too_large is not None:
        limit = min(limit, measured.too_large - 1)
    if profile.memory_gb is not None and training is None:
        limit = min(limit, max(1, known, int(profile.memory_gb / GB_A_SAMPLE)))

    def fits(micro: int) -> bool:
        if micro <= known:
            return True
        if measured is not None and measured.too_large is not None:  # sizes between the two are untested
            return False
        return training is None or room is None or needed_gb(training, precision, micro) <= room

    sizes = (size for size in range(limit, 0, -1) if share % size == 0)
    micro = next((size for size in sizes if fits(size)), 1)
    return Split(global_batch=batch.global_size, ranks=ranks, micro_batch=micro, accumulation=share // micro)
