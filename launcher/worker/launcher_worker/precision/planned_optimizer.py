"""The plan's AdamW: its form, and how an optimizer keeps its form when it reads a checkpoint of another form.

foreach    several kernels over many weights at once; keeps its step counts on the host
fused      one kernel, which needs no extra memory for square roots; keeps its step counts on the device
8-bit      torchao's, for bf16 weights: 8-bit moments, and weights that are rounded stochastically. Rounding to
           nearest loses an update smaller than half the distance between two bf16 numbers; stochastic
           rounding keeps it on average
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Mapping

from ..channel import rank
from ..values import Knobs, knobs
from .compiled_models import missing_compiler

NOT_ROUNDED = (
    "the plan has bf16 weights, and this optimizer rounds them to the nearest number, which loses small updates: "
    "take the optimizer from the plan, by worker.training_arguments() without optim or by worker.adamw(parameters, lr=...)"
)
_SEEDS = 1_000_003  # the distance between the seeds of two runs: the number of the step is added to a seed


def adamw(parameters: Any, **own: Any) -> Any:
    """Return the plan's AdamW for some parameters; `own` keywords are added and win.

    Raises RuntimeError if the plan needs torchao and it is not installed.
    """
    import torch

    values = knobs()
    if not values.peek.precision.rounds_stochastically:
        return torch.optim.AdamW(parameters, **optimizer_arguments(**own))
    keywords = {"eps": values.peek.precision.adam_eps, "bf16_stochastic_round": True, **own}
    return restore_form(_torchao().AdamW8bit(parameters, **keywords))


def optimizer_arguments(**own: Any) -> Dict[str, object]:
    """Return the plan as keywords for `torch.optim.AdamW`; `own` keywords are added and win.

    Raises RuntimeError if the plan needs another optimizer, which `adamw` returns.
    """
    values = knobs()
    if values.peek.precision.rounds_stochastically:
        raise RuntimeError(NOT_ROUNDED)
    fused = True if fuses_adamw(values) else None  # False would turn off foreach too
    return {"eps": values.peek.precision.adam_eps, "fused": fused, **own}


def trainer_optimizer(values: Knobs, own: Dict[str, object]) -> Dict[str, object]:
    """Return the plan's optimizer as keywords of TrainingArguments; `own` are the script's keywords.

    Raises RuntimeError if the plan needs torchao and it is not installed.
    """
    if values.peek.precision.rounds_stochastically and "optim" not in own:
        _torchao()
        return {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=True"}
    is_fused = fuses_adamw(values) and not own.get("fp16")
    return {"optim": "adamw_torch_fused" if is_fused else "adamw_torch"}


def fuses_adamw(values: Knobs) -> bool:
    """Return whether AdamW is the fused one; before torch 2.4 it rejects weights that are not on a card yet."""
    if not values.peek.precision.fuses_adamw:
        return False
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


def check_rounding(optimizer: Any) -> None:
    """Raise RuntimeError if an optimizer would round the plan's bf16 weights to the nearest number."""
    import torch

    if not knobs().peek.precision.rounds_stochastically or getattr(optimizer, "bf16_stochastic_round", False):
        return
    for group in optimizer.param_groups:
        if any(part.requires_grad and part.dtype == torch.bfloat16 for part in group["params"]):
            raise RuntimeError(NOT_ROUNDED)


def restore_form(optimizer: Any) -> Any:
    """Restore an optimizer's original form after it has read a checkpoint; return the optimizer.

    torch takes the form from the checkpoint, which may come from an attempt at another precision. The step
    counts move to the host or the device, as the form needs: a form that reads them on the host would
    otherwise wait for the device once for each weight. Optimizers in none of the plan's forms stay as they
    are.
    """
    own = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    if getattr(own, "bf16_stochastic_round", False):
        _round_alike(own)
        return optimizer
    fused = getattr(optimizer, "defaults", {}).get("fused")
    for group in optimizer.param_groups:
        if "fused" not in group:
            continue
        group["fused"] = fused
        _move_counts(optimizer, group, None if fused else "cpu")
    return optimizer


def _move_counts(optimizer: Any, group: Mapping[str, Any], device: Any) -> None:
    """Move a group's step counts to a device; if it is None, move each to its parameter's device."""
    for parameter in group["params"]:
        steps = optimizer.state.get(parameter, {}).get("step")
        if hasattr(steps, "to") and not group.get("capturable"):
            optimizer.state[parameter]["step"] = steps.to(device or parameter.device)


def _round_alike(optimizer: Any) -> None:
    """Make an optimizer draw the same random numbers on every rank, and repeat them after a resume.

    Ranks with differently rounded weights would train different models. The random numbers of the training
    itself do not change.
    """
    for group in optimizer.param_groups:
        _move_counts(optimizer, group, "cpu")
    _widen_small_moments(optimizer)
    if hasattr(optimizer, "_launch_rounding"):
        return
    rounding = _Rounding(knobs(), optimizer.param_groups[0]["params"][0].device)
    optimizer._launch_rounding = rounding  # noqa: SLF001  # our mark
    optimizer.register_step_pre_hook(rounding.begin)
    optimizer.register_step_post_hook(rounding.end)


def _widen_small_moments(optimizer: Any) -> None:
    """Keep in float32 the moments that torchao does not keep in 8 bits: those of fewer than 4096 numbers.

    They belong to norms and biases. torchao would keep them in bf16. A mean of squares shrinks by at most a
    thousandth in a step, and rounding to bf16 loses such a change, so the mean would never fall: one large
    early gradient would make all later steps too small.
    """
    import torch

    for state in optimizer.state.values():
        for name, value in state.items():
            if type(value) is torch.Tensor and value.dtype == torch.bfloat16:
                state[name] = value.float()
    if hasattr(optimizer, "_launch_rounding"):
        return
    made = optimizer._new_buffer  # noqa: SLF001  # torchao has no option for it

    def new_buffer(parameter: Any, signed: bool) -> Any:
        buffer = made(parameter, signed)
        return buffer.float() if type(buffer) is torch.Tensor else buffer

    optimizer._new_buffer = new_buffer  # noqa: SLF001


class _Rounding:
    """The changes during an optimizer step: seeded random numbers and, on a CPU, no compilation."""

    def __init__(self, values: Knobs, device: Any) -> None:
        self._seed = values.seed * _SEEDS
        self._device = device
        self._is_compiled = device.type == "cuda" and _can_compile()
        self._before = contextlib.ExitStack()

    def begin(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Seed the device's generator with the step count."""
        import torch

        if not self._is_compiled:  # on a CPU, the compilation would take minutes
            self._before.enter_context(torch.compiler.set_stance("force_eager"))
        generator = (
            torch.cuda.default_generators[self._device.index or 0]
            if self._device.type == "cuda"
            else torch.default_generator
        )
        self._before.callback(generator.set_state, generator.get_state())
        step = next((int(state["step"]) for state in optimizer.state.values() if "step" in state), 0)
        generator.manual_seed(self._seed + step)

    def end(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Undo the changes of `begin`."""
        self._before.close()


def _can_compile() -> bool:
    """Return whether the step can be compiled; if not, print once that it is slower.

    Its memory is still as planned.
    """
    missing = missing_compiler("cuda")
    if missing and rank() == 0:
        print(f"the optimizer's step is not compiled, and slower: the host lacks {missing}", flush=True)
    return not missing


def _torchao() -> Any:
    """Return torchao's optimizers."""
    try:
        import torchao.optim
    except ImportError as error:
        raise RuntimeError(
            f"the plan has bf16 weights, whose optimizer is torchao's, and torchao cannot be imported ({error}): "
            "pip install torchao on the host, or add it to the job's requirements"
        ) from error
    _load_exactly(torchao.optim.AdamW8bit)
    return torchao.optim


def _load_exactly(kind: Any) -> None:
    """Make an optimizer class read a checkpoint's float32 moments unchanged.

    torch casts them to the weights' dtype, so a resumed training would continue with rounded ones. A Trainer
    makes its optimizer and reads the checkpoint in one call, so the patch must be on the class.
    """
    import torch

    if hasattr(kind, "_launch_load"):
        return
    kind._launch_load = plain = kind.load_state_dict  # noqa: SLF001  # our mark

    def load_state_dict(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
        plain(optimizer, state_dict)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        keys = [one for group in state_dict["param_groups"] for one in group["params"]]
        for parameter, key in zip(parameters, keys):  # noqa: B905  # Python 3.8 lacks `strict`; torch has compared the lengths
            for name, value in state_dict["state"].get(key, {}).items():
                if name != "step" and type(value) is torch.Tensor and value.dtype == torch.float32:
                    optimizer.state[parameter][name] = value.to(parameter.device, copy=True)

    kind.load_state_dict = load_state_dict
