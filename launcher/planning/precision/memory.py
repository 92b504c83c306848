"""Estimate the card memory that a training needs, from the model's shape, to choose rung and micro-batch.

The estimate is the peak of a step with accumulation, so the gradients of the previous micro-batch are in
memory. `docs/precision.md` has the formula. Sources: the tensors that torch 2.13, transformers 5.23 and peft
0.21 keep alive (`tests/bench/MEMORY.md` compares); bitsandbytes' documentation for the states of its 8-bit
optimizers.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.planning.precision.activations import (
    adapter_parameters,
    layer_bytes,
    passing_bytes,
    stream_bytes,
)
from launcher.planning.precision.workload import Optimizer, Workload
from launcher.values.job import Method, trains_adapter
from launcher.values.model import NF4_BITS, Model
from launcher.values.precision import Dtype, Precision
from launcher.values.profile import Profile

GB = 1e9
CONTEXT_BYTES = 1e9
"""A process's memory on a card before its first tensor: CUDA's context, kernels, and libraries' work space.

The libraries are cuBLAS and cuDNN. torch's out-of-memory reports show 0.58 GiB beyond its own on an RTX 5090
(Wan-Video/Wan2.1 issue 465) and 0.49 GiB on an A100 (TianheWu/CoSeR issue 10). The minimum is 0.3 GiB since
CUDA 11.7, which loads kernels at their first use (pytorch/pytorch issue 107667).
"""
LOST_SHARE = 0.04
"""The share of nvidia-smi's total that tensors cannot use: the driver keeps some, and blocks are not full.

The driver's part: 1.4 % of an RTX 4090 (24564 MiB; torch sees 24217), 1.5 % of an RTX 5090 (32607; 32123),
0.5 % of an H200.
"""
HOST_SHARE = 1 / 6
"""The share of a host's memory that its processes need, if the card has no memory of its own and uses the host's.

On a DGX Spark with 121.7 GiB, 101 to 102 were free for CUDA, without a desktop and other programs
(MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 47).
"""
APPLE_SHARE = 1 / 3
"""The system's share of a Mac's memory: Metal's `recommendedMaxWorkingSetSize` is two thirds up to 36 GB."""
LOGIT_BYTES = 12
"""Bytes per logit while the loss uses the most memory: the log-softmax, its gradient and the loss's, in float32."""
TEACHER_LOGIT_BYTES = 20
"""Additional bytes per logit in a distillation: both models' logits, and both distributions."""

_BYTES: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


class _States(NamedTuple):
    """An optimizer's memory for each trained parameter, as multiples of the parameter's own bytes, or in bytes.

    `kept` and `kept_bytes` are its state; `step` is used only during a step. `matrices` counts copies of the
    largest matrix during a step.
    """

    kept: float = 0.0
    kept_bytes: float = 0.0
    step: float = 0.0
    matrices: float = 0.0


_STATES: dict[Optimizer, _States] = {
    "adamw": _States(kept=2, step=1),  # the foreach form computes all square roots at once
    "adamw-fused": _States(kept=2),
    "adam-8bit": _States(kept_bytes=2),
    # torchao's optimizer, with one scale for 256 moments. Its step is assumed to be uncompiled: 41 bytes per
    # element of the largest matrix. Compiled for a CPU it needs 8. The compiled step is not measured on a
    # card, and a host may lack the compiler.
    "adamw-rounding": _States(kept_bytes=2 + 8 / 256, matrices=20.5),
    "lion": _States(kept=1),
    "lion-8bit": _States(kept_bytes=1),
    "adafactor": _States(matrices=2),
    "sgd": _States(),
}


class Training(NamedTuple):
    """A training whose memory is estimated."""

    model: Model
    method: Method
    workload: Workload = Workload()

    @property
    def trained(self) -> int:
        """The number of trained parameters."""
        if not trains_adapter(self.method):
            return self.model.parameters
        return adapter_parameters(self.model, self.workload.lora_rank)


class Estimate(NamedTuple):
    """The peak of a step's memory by its parts, in bytes.

    `weights` are those of the model and of a teacher. `optimizer` is the optimizer's state, and
    `activations` the additional memory of the forward and the backward pass. If the peak is in the
    optimizer's step, `optimizer` includes the step's memory, and `activations` is 0, because the activations
    are freed before that step.

    With several ranks `gradients` count twice: DistributedDataParallel copies them into its buckets (torch's
    documentation of `gradient_as_bucket_view`). A model that is divided among the ranks has a share of each
    part, and whole are the weights in use: the embeddings and the head, and two layers, of which one is
    fetched in advance, and their gradients (torch's documentation of `fully_shard`).
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def states(self) -> float:
        """The memory that stays from step to step: all but the activations."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """The peak of a step."""
        return self.states + self.activations


def estimate(training: Training, precision: Precision, micro_batch: int = 1) -> Estimate:
    """Return the peak of a step with this micro-batch."""
    states = _states(training, precision)
    trained, own = training.trained, _BYTES[precision.trainable_dtype]
    kept = trained * (own * states.kept + states.kept_bytes)
    passes = _passes(training, precision, micro_batch * training.workload.tokens)
    step = _step(training, precision)
    share, whole, copies = 1.0, 0.0, 2 if training.workload.ranks > 1 else 1
    if training.workload.is_sharded:
        share, whole, copies = 1 / training.workload.ranks, own * _in_use(training.model), 1
        step *= share
        passes += 2 * whole
    is_step = step > passes
    return Estimate(
        weights=_weights(training, precision) * share,
        gradients=trained * own * copies * share,
        optimizer=kept * share + (step if is_step else 0),
        activations=0 if is_step else passes,
    )


def _in_use(model: Model) -> float:
    """Return the number of parameters of a divided model that a card has whole at a time."""
    return model.embeddings + 2 * (model.parameters - model.embeddings) / model.layers


def needed_gb(training: Training, precision: Precision, micro_batch: int = 1) -> float:
    """Return the peak of a step's memory, in GB."""
    return estimate(training, precision, micro_batch).total / GB


def gb_words(size: float) -> str:
    """Write bytes as GB, e.g. `23.7` or `1133`."""
    gb = size / GB
    return f"{gb:.1f}" if gb < 999.95 else f"{gb:.0f}"


def teacher_bytes(training: Training, precision: Precision) -> float:
    """Return the bytes of a distillation's teacher; 0 without one."""
    teacher, dtype = training.workload.teacher, training.workload.teacher_dtype
    return 0.0 if teacher is None else _frozen(teacher, dtype or precision.base_dtype)


def reserve_bytes(profile: Profile) -> float:
    """Return the bytes of one card that a plan leaves free: for CUDA, the driver and fragmentation; 0 if unknown."""
    total = profile.memory_bytes or 0
    if profile.kind == "mps":
        return total * APPLE_SHARE
    share = HOST_SHARE if profile.unified else LOST_SHARE
    return min(total, CONTEXT_BYTES + share * total) if profile.kind == "cuda" else 0


def usable_gb(profile: Profile) -> float | None:
    """Return the memory of one card that a plan may use, in GB; None if the card's memory is unknown."""
    total = profile.memory_bytes
    return None if total is None else (total - reserve_bytes(profile)) / GB


def usable_words(profile: Profile) -> str:
    """Return `usable_gb` in words, e.g. `a plan uses 23.7 GB of the card's 25.8 GB`."""
    return f"a plan uses {usable_gb(profile):.1f} GB of the card's {(profile.memory_bytes or 0) / GB:.1f} GB"


def _weights(training: Training, precision: Precision) -> float:
    """Return the bytes of trained weights, of a frozen base, and of a teacher."""
    model = training.model
    taught = teacher_bytes(training, precision)
    bits = NF4_BITS if precision.quantization else None
    base = _frozen(model, precision.base_dtype, bits) if trains_adapter(training.method) else 0
    return training.trained * _BYTES[precision.trainable_dtype] + base + taught


def _states(training: Training, precision: Precision) -> _States:
    """Return the memory of the optimizer that a precision uses."""
    optimizer = training.workload.optimizer
    if optimizer == "adamw-planned":
        if precision.rounds_stochastically:
            return _STATES["adamw-rounding"]
        optimizer = "adamw-fused" if precision.fuses_adamw else "adamw"
    return _STATES[optimizer]


def _frozen(model: Model, dtype: Dtype, bits: float | None = None) -> float:
    """Return the bytes of a frozen model. `bits`: the size of a linear weight if loading quantizes the model.

    Loading does not quantize experts: transformers 5 stores them as one tensor, and bitsandbytes quantizes
    `nn.Linear` only.
    """
    whole = model.embeddings
    if bits and not model.weight_bits:
        whole = min(model.parameters, whole + (model.expert_parameters or 0))
    bits = model.weight_bits or bits or 8 * _BYTES[dtype]
    return whole * _BYTES[dtype] + (model.parameters - whole) * bits / 8


def _step(training: Training, precision: Precision) -> float:
    """Return the memory that the optimizer allocates during a step."""
    states, own = _states(training, precision), _BYTES[precision.trainable_dtype]
    model = training.model
    widest = (
        max(model.vocab_size, model.mlp_width) * model.hidden_size
        if not trains_adapter(training.method)
        else 0
    )
    return own * (states.step * training.trained + states.matrices * widest)


def _passes(training: Training, precision: Precision, tokens: int) -> float:
    """Return the additional memory of the forward and backward pass at their peak, for a micro-batch's tokens."""
    model, method, workload = training.model, training.method, training.workload
    logit = LOGIT_BYTES + (TEACHER_LOGIT_BYTES if workload.teacher else 0)
    logits = logit * model.vocab_size * tokens
    layer = layer_bytes(model, method, precision, workload.lora_rank, workload.tokens) * tokens
    copies = _half_copies(training, precision)
    if not workload.is_checkpointed:
        return copies + model.layers * layer + logits
    inputs = (model.layers + 2) * model.hidden_size * stream_bytes(precision) * tokens
    again = layer + passing_bytes(model, precision) * tokens + copies / model.layers
    head = min(
        copies, 2 * model.vocab_size * model.hidden_size
    )  # the head is not recomputed, so its copy stays
    cached = copies if not trains_adapter(method) else head
    return inputs + max(head + logits, again, cached + 10 * model.vocab_size * tokens)


def _half_copies(training: Training, precision: Precision) -> float:
    """Return the bytes of autocast's half-precision copies of float32 weights, which the backward pass needs."""
    if precision.autocast_dtype is None:
        return 0
    model = training.model
    if not trains_adapter(training.method):
        return 2 * model.multiplied
    is_quantized = precision.quantization or model.weight_bits
    # In a quantized model autocast copies only the head and the experts. A model that was saved quantized has
    # quantized experts, which are not copied.
    experts = 0 if model.weight_bits else model.expert_parameters or 0
    copied = model.vocab_size * model.hidden_size + experts if is_quantized else model.multiplied
    return 2 * (training.trained + (copied if precision.base_dtype == "float32" else 0))
