"""The plan for torch, transformers and accelerate: keywords, autocast, scaler and Accelerator.

A script's own keywords override those of the plan. The knob behind an overridden keyword does not count as
used, because another value of the knob would not change the training.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Tuple

from ..values import SHORT_NAMES, Knobs, knobs
from .compiled_models import compiles
from .planned_optimizer import trainer_optimizer
from .quantization import quantized_loading

CHECKPOINTING = {"use_reentrant": False}  # the reentrant form needs inputs that require gradients
# The keywords of TrainingArguments that each knob decides.
_KEYWORDS_OF_KNOBS = {
    "precision": {"fp16", "bf16", "tf32"},
    "split": {"per_device_train_batch_size", "gradient_accumulation_steps"},
    "steps": {"max_steps"},
    "loaders": {"dataloader_num_workers"},
    "activation_checkpointing": {"gradient_checkpointing", "activation_checkpointing"},
}


def model_arguments(**own: Any) -> Dict[str, object]:
    """Return the plan as keywords for `from_pretrained`; `own` keywords are added and win.

    A 4-bit base model is quantized while it loads. Pass `quantization_config=None` for a second model that
    must not be quantized, such as a teacher.
    """
    import torch
    import transformers

    values = knobs()
    keywords: Dict[str, object] = {}
    attention = values.peek.precision.attention
    if "quantization_config" not in own:
        keywords.update(quantized_loading(values, _device(values)))
    if attention != "sdpa" and not values.rehearsed:  # sdpa is the default of every model that supports it
        keywords["attn_implementation"] = attention
    if not {"dtype", "torch_dtype"} & own.keys():
        dtype = getattr(torch, values.precision.base_dtype)  # reading it consumes the knob
        keywords["dtype" if version(transformers.__version__) >= (4, 56) else "torch_dtype"] = dtype
    return {**keywords, **own}


def training_arguments(**own: Any) -> Dict[str, object]:
    """Return the plan as keywords for `transformers.TrainingArguments`; `own` keywords are added and win.

    It also sets the variable ACCELERATE_MIXED_PRECISION, which could otherwise turn on autocast silently.
    """
    values = knobs()
    precision, split = values.peek.precision, values.peek.split
    on_cpu = values.rehearsed or precision.device == "cpu"
    # the plan's flags are then off: two flags are an error
    has_own_flag = bool({"fp16", "bf16"} & own.keys())
    keywords: Dict[str, object] = {
        "output_dir": values.checkpoints,
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.accumulation,
        "seed": values.seed,
        "data_seed": values.seed,
        "fp16": precision.autocast_dtype == "float16" and not has_own_flag,
        "bf16": precision.autocast_dtype == "bfloat16" and not has_own_flag,
        "use_cpu": on_cpu,
        **trainer_optimizer(values, own),
        "adam_epsilon": precision.adam_eps,
        "max_grad_norm": 1.0,
        "logging_nan_inf_filter": False,  # True would log a NaN loss as 0.0
        "include_num_input_tokens_seen": "non_padding",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": values.peek.loader_workers,
        "dataloader_pin_memory": not on_cpu,
        # `trainer_callback` decides: it saves also after minutes, and at a request to end
        "save_strategy": "no",
    }
    if values.peek.steps is not None:
        keywords["max_steps"] = values.peek.steps
    if precision.tf32 and not values.rehearsed:
        keywords["tf32"] = True  # never pass False, the default: some versions raise on old cards
    if compiles(values):
        keywords["torch_compile"] = True
    if (
        values.peek.activation_checkpointing
        and not _KEYWORDS_OF_KNOBS["activation_checkpointing"] & own.keys()
    ):
        from transformers import TrainingArguments

        name = f"{kind_of_checkpointing(TrainingArguments)}_checkpointing"
        keywords[name], keywords[f"{name}_kwargs"] = True, dict(CHECKPOINTING)
    keywords.update(own)
    values.consume(*(knob for knob, names in _KEYWORDS_OF_KNOBS.items() if not names & own.keys()))
    if has_own_flag:
        values.hold("precision")
    configure_accelerate(values, "fp16" if keywords["fp16"] else "bf16" if keywords["bf16"] else "no")
    return keywords


def accelerator(**own: Any) -> Any:
    """Return an `accelerate.Accelerator` with the plan's precision and accumulation; `own` keywords win.

    If the job sets `compile`, the Accelerator compiles the models that it prepares for training. Save the
    original model. The script reads the micro-batch itself, from `knobs().split`, which consumes that knob.
    """
    from accelerate import Accelerator

    values = knobs()
    if "mixed_precision" in own:
        values.hold("precision")
    else:
        values.consume("precision")
    precision = values.peek.precision
    keywords: Dict[str, object] = {
        "mixed_precision": SHORT_NAMES[precision.autocast_dtype] if precision.autocast_dtype else "no",
        "gradient_accumulation_steps": values.peek.split.accumulation,
        "cpu": values.rehearsed or precision.device == "cpu",
        **own,
    }
    if compiles(values) and "dynamo_plugin" not in own:
        keywords.setdefault("dynamo_backend", "inductor")
    configure_accelerate(values, str(keywords["mixed_precision"]))
    return Accelerator(**keywords)


def autocast() -> Any:
    """Return a new context manager for the forward pass: the plan's autocast, or a disabled autocast."""
    import torch

    values = knobs()
    dtype = values.precision.autocast_dtype
    device = _device(values)
    if dtype is None:
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=getattr(torch, dtype))


def scaler() -> Any:
    """Return a `torch.amp.GradScaler`; if the plan has no scaler, it is disabled and changes nothing."""
    import torch

    values = knobs()
    return torch.amp.GradScaler(_device(values), enabled=values.precision.scaler)


def kind_of_checkpointing(owner: Any) -> str:
    """Return the name that TrainingArguments or a model uses: `activation`, or `gradient` in older versions."""
    names = ("activation_checkpointing", "activation_checkpointing_enable")
    return "activation" if any(hasattr(owner, name) for name in names) else "gradient"


def version(text: str) -> Tuple[int, ...]:
    """Return the first two numbers of a version or of a compute capability."""
    return tuple(int(part) for part in text.split(".")[:2])


def configure_accelerate(values: Knobs, mixed_precision: str) -> None:
    """Set the same precision for every Accelerator that the script makes itself.

    accelerate reads this variable, and ignores a value that is not in lower case.
    """
    os.environ["ACCELERATE_MIXED_PRECISION"] = mixed_precision
    if values.rehearsed:
        _enable_fp16_on_cpu()


@functools.lru_cache(maxsize=None)
def _enable_fp16_on_cpu() -> None:
    """Let accelerate, and so Trainer, use fp16 on the CPU as on a card; by default accelerate silently turns fp16 off.

    Both Trainer and a script's own loop take autocast and scaler from an Accelerator, so it is enough to
    patch that class.
    """
    import torch
    from accelerate import Accelerator

    original = Accelerator.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.mixed_precision == "fp16" and self.device.type == "cpu":
            settings = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
            self.native_amp = True
            self.scaler = torch.amp.GradScaler("cpu", **settings)

    Accelerator.__init__ = init


def _device(values: Knobs) -> str:
    """Return torch's name of the training's device type."""
    import torch

    device = "cpu" if values.rehearsed else values.peek.precision.device
    if device != "auto":
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
