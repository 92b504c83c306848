"""`prepare`: makes a model safe to train at the plan's precision, and puts it under the guard.

It converts trainable parameters to the plan's dtype, compares frozen ones with the plan, switches tf32, and
avoids one slow attention kernel on old cards.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, List, Sequence, Set

from ..channel import rank
from ..guard import process_guard
from ..guard.torch_hooks import forbid_casts
from ..unsaved_hook import UnsavedHook
from ..values import Precision, knobs
from .mixed_precision import CHECKPOINTING, kind_of_checkpointing, version
from .quantization import is_quantized, set_up_layers


def prepare(model: Any, moving: Sequence[str] = ()) -> Any:
    """Make a torch model safe to train at the plan's precision, in place; start the guard; return the model.

    Trainable parameters get the plan's dtype: peft leaves modules_to_save, norms, biases and a new head in
    the base's dtype, and a scaler refuses float16 gradients. After this call, a cast of the live model raises
    an error. Call it after adapters are added and before an optimizer is built, whose state would keep the
    old dtype. Raises RuntimeError if the model has no trainable parameter, or if a frozen half-precision
    parameter has another dtype than the plan's base.

    `moving` lists name prefixes of frozen parameters that the script moves itself, such as `["teacher."]`.
    Most of them need not be listed: the guard recognises a parameter that moves towards its trained twin.
    Raises ValueError if no parameter has such a prefix.
    """
    import torch

    values = knobs()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RuntimeError(
            "nothing in the model is trainable: before prepare(), add an adapter or set requires_grad"
        )
    values.announce()
    convert_trainables(model)
    if values.run is not None:  # without a run there is no plan to compare the base with
        base = getattr(torch, values.peek.precision.base_dtype)
        _check_base(model, base, (torch.float16, torch.bfloat16))
    set_up(model)
    process_guard.watch(model, moving)
    forbid_casts(model)
    return model


def is_half(tensor: Any) -> bool:
    """Return whether a tensor holds float16 or bfloat16 numbers."""
    return bool(tensor.is_floating_point() and tensor.element_size() == 2)


def check_trainables(model: Any) -> None:
    """Raise RuntimeError if something has changed the dtype of trained weights after `prepare`.

    TRL's trainers cast the adapter of a quantized model to bfloat16, whatever the card and the plan.
    """
    target = _trained_dtype()
    if knobs().run is None or model is None or not process_guard.is_watching:
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and is_half(parameter) and parameter.dtype != target:
            raise RuntimeError(
                f"{name} is {parameter.dtype}, but the plan trains {target}: call worker.prepare(trainer.model) after the trainer is made"
            )


def _trained_dtype() -> Any:
    import torch

    precision = knobs().peek.precision
    return torch.float32 if precision.scaler else getattr(torch, precision.trainable_dtype)


def convert_trainables(model: Any, base: Any = None) -> int:
    """Convert a model's trainables to the plan's dtype, in place; return their number.

    If the `base`, by default the plan's, has half precision, modules whose weights became float32 compute in the
    base's dtype while autocast is off.
    """
    import torch

    precision = knobs().peek.precision
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    half_dtypes = (torch.float16, torch.bfloat16)
    target = _trained_dtype()
    converted = _convert(trainable, target, half_dtypes)
    base = getattr(torch, precision.base_dtype) if base is None else base
    if base in half_dtypes and target == torch.float32:
        _compute_in_base_dtype(model, converted, base)
    return len(converted)


def set_up(model: Any) -> None:
    """Switch tf32, attention to grouped heads, quantized layers and activation checkpointing as planned."""
    values = knobs()
    precision = values.peek.precision
    if precision.device == "cuda" and not values.rehearsed:
        _switch_tf32(precision.tf32)
    _repeat_grouped_heads(precision)
    set_up_layers(model)
    enable = getattr(model, f"{kind_of_checkpointing(model)}_checkpointing_enable", None)
    if enable is not None and values.activation_checkpointing:
        enable(dict(CHECKPOINTING))


def _convert(trainable: Sequence[Any], target: Any, half_dtypes: Sequence[Any]) -> Set[int]:
    """Convert trainable parameters to the target dtype, in place; return the ids of those converted.

    A float32 parameter is converted only if the target is half precision; float64 and integers stay.
    """
    import torch

    converted = set()
    for parameter in trainable:
        if parameter.dtype in half_dtypes or (target in half_dtypes and parameter.dtype == torch.float32):
            converted.add(id(parameter))
            parameter.data = parameter.data.to(target)
    return converted


def _compute_in_base_dtype(model: Any, converted: Set[int], base: Any) -> None:
    """Make modules whose weights became float32 compute in the base's dtype when autocast is off.

    Autocast is off if the plan has none, and in an evaluation that does not use it. As under autocast, the
    weights are cast for the duration of a forward pass. The weights of a peft adapter are not cast: peft
    casts the adapter's input to their dtype.
    """
    import torch

    def lower(names: List[str], module: Any, inputs: Any) -> None:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if any(torch.is_autocast_enabled(tensor.device.type) for tensor in tensors):
            return
        if any(tensor.dtype == torch.float32 for tensor in tensors):
            return
        parameters = module._parameters  # noqa: SLF001  # the dictionary from which a module reads its parameters
        wide = {name: parameters[name] for name in names if parameters[name].dtype == torch.float32}
        module._launch_wide = wide  # noqa: SLF001
        parameters.update({name: parameter.to(base) for name, parameter in wide.items()})

    def restore(module: Any, _inputs: Any, _output: Any) -> None:
        module._parameters.update(module.__dict__.pop("_launch_wide", {}))  # noqa: SLF001

    for module in model.modules():
        named = module.named_parameters(recurse=False)
        names = [name for name, parameter in named if id(parameter) in converted]
        if names:
            module.register_forward_pre_hook(UnsavedHook(functools.partial(lower, names)))
            module.register_forward_hook(UnsavedHook(restore), always_call=True)


def _check_base(model: Any, base: Any, half_dtypes: Sequence[Any]) -> None:
    """Compare the frozen parameters with the plan's base; quantized weights are not compared."""
    fix = "load the model with from_pretrained(..., **worker.model_arguments())"
    quantization = knobs().peek.precision.quantization
    if quantization is not None and rank() == 0 and not any(map(is_quantized, model.parameters())):
        print(
            f"precision: nothing is quantized, where the plan has an {quantization} base: {fix}", flush=True
        )
    wider = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or parameter.dtype == base or is_quantized(parameter):
            continue
        if parameter.dtype in half_dtypes:
            raise RuntimeError(f"{name} is {parameter.dtype}, but the plan's base is {base}: {fix}")
        if parameter.is_floating_point() and parameter.itemsize >= 4 and base in half_dtypes:
            wider.append(name)
    if wider and rank() == 0:
        print(
            f"precision: {len(wider)} frozen tensors are wider than the plan's {base}, the first is {wider[0]}; "
            f"that is safe but takes more memory. To follow the plan, {fix}",
            flush=True,
        )


def _switch_tf32(is_on: bool) -> None:
    """Turn tf32 on or off for float32 products.

    Uses the same setting as transformers, because torch forbids mixing its two settings.
    """
    import torch

    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9 and later
        torch.backends.fp32_precision = "tf32" if is_on else "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = is_on
        torch.backends.cudnn.allow_tf32 = is_on


def _repeat_grouped_heads(precision: Precision) -> None:
    """Make transformers repeat the keys of grouped heads where SDPA lacks a fast kernel for grouped heads.

    Below compute capability 8.0 and before torch 2.14, SDPA falls back to its math kernel, whose memory is
    quadratic in the sequence length.
    """
    import torch

    sdpa = sys.modules.get(
        "transformers.integrations.sdpa_attention"
    )  # the module is loaded if transformers made the model
    if precision.device != "cuda" or precision.capability is None or not hasattr(sdpa, "use_gqa_in_sdpa"):
        return
    if version(precision.capability) < (8, 0) and version(torch.__version__) < (2, 14):
        sdpa.use_gqa_in_sdpa = lambda *_args, **_kwargs: False  # type: ignore[union-attr]
