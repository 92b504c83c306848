"""accelerate's Accelerator: the plan's precision, and a model that is safe to train."""

from __future__ import annotations

import functools
from typing import Any

from ..precision.mixed_precision import configure_accelerate
from ..shield import shielded
from ..values import SHORT_NAMES, knobs
from .adapted_models import adapt_model, autocasting_models
from .changes import changes


@shielded
def adapt_accelerator(module: Any) -> None:
    """Make every Accelerator follow the plan; `module` is accelerate.accelerator."""
    kind = module.Accelerator
    init, prepare_model = kind.__init__, kind.prepare_model

    @functools.wraps(init)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        with shielded:
            kwargs = _planned(args, kwargs)
        init(self, *args, **kwargs)

    @functools.wraps(prepare_model)
    def prepared(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with shielded:
            if not kwargs.get("evaluation_mode"):
                adapt_model(model)
                autocasting_models.add(model)
        return prepare_model(self, model, *args, **kwargs)

    kind.__init__, kind.prepare_model = begin, prepared


def _planned(args: Any, own: Any) -> Any:
    """Return a script's keywords with the plan's precision.

    The script's batch is not changed: its data loader sets it.
    """
    if own.get("deepspeed_plugin") or own.get("megatron_lm_plugin"):
        changes.leave("precision of an Accelerator with its own plugin")
        return own
    if args[2:]:
        changes.leave("precision of an Accelerator that is given it by position")
        return own
    values = knobs()
    dtype = values.precision.autocast_dtype
    planned = SHORT_NAMES[dtype] if dtype else "no"
    changes.change("Accelerator", "mixed_precision", own.get("mixed_precision"), planned)
    configure_accelerate(values, planned)
    return {**own, "mixed_precision": planned}
