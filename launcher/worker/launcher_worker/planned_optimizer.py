"""The plan's AdamW: which of torch's forms of it, and how it keeps that form when it reads a checkpoint of another.

foreach    several kernels over many weights at once; keeps its count of steps on the host
fused      one kernel, which needs no square roots beside it; keeps its count of steps on the device
"""

from __future__ import annotations

from typing import Any, Dict

from .values import Knobs, knobs


def optimizer_arguments(**own: Any) -> Dict[str, Any]:
    """Return the plan as keywords for `torch.optim.AdamW`; `own` keywords are added and win."""
    values = knobs()
    fused = True if fuses_adamw(values) else None  # False would turn off foreach too
    return {"eps": values.peek.precision.adam_eps, "fused": fused, **own}


def fuses_adamw(values: Knobs) -> bool:
    """Return whether AdamW is the fused one; before torch 2.4 it takes no weights that are not on a card yet."""
    if not values.peek.precision.fuses_adamw:
        return False
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


def restore_form(optimizer: Any) -> None:
    """Give an optimizer that has read a checkpoint the form back with which it was made; other optimizers stay as they are.

    torch takes the form from the checkpoint, which may be of an attempt at another precision. The count of steps moves
    with it: where the host needs it, one on the device would make the host wait for each weight.
    """
    fused = getattr(optimizer, "defaults", {}).get("fused")
    for group in optimizer.param_groups:
        if "fused" not in group:
            continue
        group["fused"] = fused
        for parameter in group["params"]:
            steps = optimizer.state.get(parameter, {}).get("step")
            if hasattr(steps, "to") and not group.get("capturable"):
                steps = steps.to(parameter.device if fused else "cpu")
                optimizer.state[parameter]["step"] = steps
