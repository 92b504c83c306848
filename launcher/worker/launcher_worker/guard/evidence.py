"""The proof that a precision works for a model: the agent keeps it after the first good steps."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ..json_values import digest, scalar
from ..precision.quantization import dtype_name
from ..values import knobs
from .judge import Judge

PROVEN_STEPS = 20  # good steps after which a precision counts as working


def proof(model: Any, judge: Judge) -> Dict[str, object]:
    """Return a training's first and last loss, its dtypes, and a key of model, trainables, precision and torch."""
    import torch

    dtypes: Dict[str, Dict[str, int]] = {"trainable": {}, "frozen": {}}
    trainable = []
    for name, part in model.named_parameters():
        dtype = dtype_name(part)
        counts = dtypes["trainable" if part.requires_grad else "frozen"]
        counts[dtype] = counts.get(dtype, 0) + 1
        if part.requires_grad:
            trainable.append([name, list(part.shape), dtype])
    losses = {"loss_first": judge.losses.first, "loss_last": judge.losses.last}
    return {
        "steps": judge.steps,
        **{name: None if loss is None else scalar(name, loss) for name, loss in losses.items()},
        "skipped": judge.skips,
        "dtypes": dtypes,
        "key": {
            "torch": torch.__version__,
            "model": _digest_of_config(getattr(model, "config", None)),
            "trainable": digest(sorted(trainable)),
            "precision": knobs().precision_key,
        },
    }


def _digest_of_config(config: Any) -> Optional[str]:
    """Return the digest of a model's config; None without a config, or if the config has no canonical form."""
    plain: Any = getattr(config, "to_dict", lambda: config)()
    if isinstance(plain, dict):  # private fields name the model's folder, which differs between hosts
        plain = {str(name): value for name, value in plain.items() if not str(name).startswith("_")}
    try:
        return None if plain is None else digest(plain)
    except (TypeError, ValueError):  # keys of several types, or a cycle
        return None
