"""Frozen tensors that follow a trained one, their twin, as in an EMA teacher or a momentum encoder.

Such a tensor moves on purpose. The guard recognises it because it moves towards its twin: the trained tensor
of the same shape with the longest common name suffix, such as `student.layers.0.weight` for
`teacher.layers.0.weight`.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

# The least cosine between a tensor's movement and the direction to its twin. Chance gives a cosine near 0.
ALIKE = 0.5

Named = Tuple[str, Any]


def twin_of(frozen: Named, trained: Sequence[Named]) -> Optional[Any]:
    """Return the trained parameter that a frozen one may follow: same shape, longest common name suffix."""
    name, parameter = frozen
    candidates = [
        (length, other)
        for other_name, other in trained
        if other.shape == parameter.shape and (length := _common_end(name, other_name)) > 0
    ]
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def follow_twins(parts: Sequence[Tuple[Any, Any]], twins: Sequence[Any], now: Any, moves: Any) -> Any:
    """Return a bool tensor: for each sampled tensor, whether it moved towards its twin.

    `parts` are parameters and the indices of their sampled elements; `now` and `moves` have a row for each.
    """
    import torch

    rows: List[Any] = []
    for place, (_, indices) in enumerate(parts):
        twin = twins[place]
        if twin is None:
            rows.append(torch.zeros((), dtype=torch.bool, device=now.device))
            continue
        there = twin.detach().take(indices).to(now.device, now.dtype)
        way = there - (now[place] - moves[place])
        rows.append(torch.nn.functional.cosine_similarity(way, moves[place], dim=0) > ALIKE)
    return torch.stack(rows)


def _common_end(one: str, other: str) -> int:
    """Return the number of equal last parts of two dotted names."""
    ends, other_ends = one.split(".")[::-1], other.split(".")[::-1]
    shorter = min(len(ends), len(other_ends))
    return next((place for place in range(shorter) if ends[place] != other_ends[place]), shorter)
