"""Precisions, each a consistent choice of dtypes, autocast and scaler, and their dependencies except the card."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from launcher.values.base import StrictModel, canonical_json

Mode = Literal["fp32", "bf16", "bf16-weights", "fp16", "fp16-native"]
"""`fp16-native`, all in float16 without a scaler, may occur in a user's script; plans no longer use it."""
PrecisionChoice = Literal["auto", "bf16", "bf16-weights", "fp16", "fp32"]
PrecisionRequest = PrecisionChoice | Literal["fp16-native"]
"""The precision that a launch requests.

`fp16-native` may occur in recorded requests, and is refused with `NO_NATIVE`.
"""
Dtype = Literal["float32", "float16", "bfloat16"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Quantization = Literal["nf4"]
"""The quantization of a frozen base's linear layers: NF4 is the 4-bit format of QLoRA (arXiv:2305.14314)."""
CAPABILITY = r"^\d{1,2}\.\d$"
Capability = Annotated[str, Field(pattern=CAPABILITY)]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*")]

PASCAL = (6, 0)
VOLTA = (7, 0)
AMPERE = (8, 0)
SMALLEST_NORMAL_FP16 = 2.0**-14
"""Smaller numbers lose digits in float16; below 6e-8 they are zero."""
FP16_SQUARED_GRADIENT = 5.5e-3
"""Below this gradient Adam's mean of squared gradients is zero in float16, and its step is the gradient divided by eps.

It is the root of 2**-25 / (1 - beta2). Measured steps were larger than in float32 by a factor: this value
divided by eps.
"""
NO_NATIVE = (
    "fp16-native is no longer supported: Adam over float16 weights takes steps up to 55 times too large, and no eps fixes that\n"
    "  let launch choose the card's best precision   --precision auto"
)


class Platform(StrictModel):
    """The dependencies of precisions other than the card: the versions of torch and macOS, and the processor.

    `None` is unknown. `apple_chip` is the processor's name, such as `Apple M1 Pro`. `has_cpu_bf16`: the
    processor computes bf16 in hardware (AVX512-BF16, AMX-BF16, or Arm's BF16).
    """

    torch: Version | None = None
    macos: Version | None = None
    apple_chip: str | None = None
    has_cpu_bf16: bool = False

    def has_torch(self, *least: int) -> bool:
        """Return whether torch is known to have at least this version."""
        return numbers(self.torch) >= least

    def has_macos(self, *least: int) -> bool:
        """Return whether macOS is known to have at least this version."""
        return numbers(self.macos) >= least


class Precision(StrictModel):
    """One consistent choice of dtypes, autocast and scaler.

    A choice that would crash or not learn cannot be built. `capability` is a CUDA card's. `platform` is given
    on devices whose rules depend on it. `why` is the reason for its place on the ladder. With a
    `quantization` the linear layers of the frozen base are quantized; `base_dtype` is then the dtype of its
    other weights: embedding, head and norms. Sources of the rules: the source code of torch 2.13,
    transformers 5.23 and bitsandbytes 0.50.2, and measured runs.
    """

    mode: Mode
    device: Literal["cuda", "mps", "cpu"]
    capability: Capability | None = None
    platform: Platform | None = None
    base_dtype: Dtype
    quantization: Annotated[Quantization | None, Field(exclude_if=lambda value: value is None)] = None
    trainable_dtype: Dtype = "float32"
    autocast_dtype: Literal["float16", "bfloat16"] | None = None
    scaler: bool = False
    tf32: bool = False
    adam_eps: float = 1e-8
    attention: Attention = "sdpa"
    compile: bool = False
    why: str

    @model_validator(mode="after")
    def _could_not_crash(self) -> Self:
        for fault in (
            *self._of_scaler(),
            *self._of_device(),
            *self._of_mode(),
            *self._of_kernels(),
            *self._of_quantization(),
        ):
            raise ValueError(fault)
        return self

    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """Return a changed copy, validated; pydantic's method does not validate."""
        return type(self).model_validate({**self.model_dump(), **(update or {})})

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON without `why`, in hex.

        Hosts store evidence of a precision under this digest.
        """
        return hashlib.sha256(
            canonical_json(self.model_dump(mode="json", exclude={"why"})).encode()
        ).hexdigest()

    @property
    def fuses_adamw(self) -> bool:
        """Whether a training that takes its optimizer from the plan gets torch's fused AdamW: one kernel, no stored square roots.

        Not with a scaler: fused AdamW would skip a step inside the kernel, unseen by accelerate and by
        learning-rate schedules. Not over float16 weights: its results differ there.
        """
        return self.device == "cuda" and self.trainable_dtype == "float32" and not self.scaler

    @property
    def compute_dtype(self) -> Dtype:
        """The dtype of matrix products; quantized weights are dequantized to it."""
        return self.autocast_dtype or self.base_dtype

    @property
    def base_title(self) -> str:
        """A short name of the base, e.g. `bf16`.

        It is `nf4` if the unquantized weights have the dtype of the products, else e.g. `nf4 and fp32`.
        """
        return base_title(self.base_dtype, self.mode, self.quantization)

    @property
    def rounds_stochastically(self) -> bool:
        """Whether bf16 weights are trained: 6 bytes a parameter, by an optimizer that rounds stochastically.

        Rounding to the nearest number would lose each update smaller than half the distance between two
        numbers.
        """
        return self.mode == "bf16-weights"

    @property
    def _dtypes(self) -> set[str]:
        return {self.base_dtype, self.trainable_dtype, self.autocast_dtype or "float32"}

    def _of_mode(self) -> Iterator[str]:
        halves = self._dtypes - {"float32"}
        expected: set[str] = {
            "fp32": set(),
            "bf16": {"bfloat16"},
            "bf16-weights": {"bfloat16"},
            "fp16": {"float16"},
            "fp16-native": {"float16"},
        }[self.mode]
        if halves != expected:
            yield f"mode {self.mode} means {_words(expected)}, not {_words(halves)}"
        if self.mode == "fp16-native" and (self.trainable_dtype, self.autocast_dtype) != ("float16", None):
            yield "fp16-native has float16 weights and no autocast"
        if self.rounds_stochastically and (self.trainable_dtype, self.autocast_dtype) != ("bfloat16", None):
            yield "bf16-weights has bfloat16 weights and no autocast"
        if self.mode not in ("fp16-native", "bf16-weights") and self.trainable_dtype != "float32":
            yield f"{self.trainable_dtype} trainables lose small updates: they must be float32 in mode {self.mode}"
        if self.mode == "fp16" and not self.scaler:
            yield "fp16 loses the gradients of float32 trainables without a scaler, all the more when a batch is accumulated"

    def _of_scaler(self) -> Iterator[str]:
        if self.scaler and self.trainable_dtype != "float32":
            yield f"a scaler cannot unscale {self.trainable_dtype} gradients: trainables must be float32"
        if self.scaler and self.autocast_dtype != "float16":
            yield "a scaler is for fp16 autocast only"
        if self.trainable_dtype == "float16" and self.adam_eps < SMALLEST_NORMAL_FP16:
            yield f"Adam's eps {self.adam_eps:g} is below the smallest normal number of float16: the update may divide by zero"

    def _of_device(self) -> Iterator[str]:
        if (self.device == "cuda") != (self.capability is not None):
            yield "capability is required for device 'cuda' and not allowed for others"
        elif self.device == "cuda":
            if "bfloat16" in self._dtypes and self._compute < AMPERE:
                yield f"capability {self.capability} < 8.0 emulates bf16 in software (torch reports it as supported)"
            if self.tf32 and self._compute < AMPERE:
                yield f"tf32 needs capability 8.0, not {self.capability}"
        if self.tf32 and self.device != "cuda":
            yield "tf32 needs a CUDA card"
        if self.device == "cpu" and "float16" in self._dtypes:
            yield "accelerate silently disables fp16 on a CPU: no autocast, no scaler"
        if self.device == "mps":
            yield from self._of_apple(self.platform or Platform())

    def _of_apple(self, platform: Platform) -> Iterator[str]:
        if "bfloat16" in self._dtypes and not platform.has_macos(14):
            yield f"bf16 on an Apple GPU needs macOS 14, not {platform.macos or 'an unknown version'}"
        for is_used, least, feature in (
            (self.autocast_dtype == "bfloat16", (2, 6), "bf16 autocast"),
            ("bfloat16" in self._dtypes, (2, 3), "bf16"),
            (self.scaler, (2, 8), "a gradient scaler"),
            (self.autocast_dtype == "float16", (2, 5), "fp16 autocast"),
        ):
            if is_used and not platform.has_torch(*least):
                version = ".".join(map(str, least))
                yield f"{feature} on an Apple GPU needs torch {version}, not {platform.torch or 'an unknown version'}"

    def _of_kernels(self) -> Iterator[str]:
        if self.attention == "flash_attention_2":
            if self.device != "cuda" or self._compute < AMPERE:
                card = f"capability {self.capability}" if self.capability else self.device
                yield f"flash_attention_2 needs a card of capability 8.0, not {card}; sdpa runs everywhere"
            elif self.base_dtype == "float32" and self.autocast_dtype is None:
                yield "flash_attention_2 computes in fp16 or bf16 only"
        if self.compile and (self.device == "mps" or (self.device == "cuda" and self._compute < VOLTA)):
            card = f"capability {self.capability}" if self.capability else "an Apple GPU"
            yield f"torch.compile needs Triton, which needs capability 7.0, not {card}"

    def _of_quantization(self) -> Iterator[str]:
        """Sources: bitsandbytes 0.50.2, docs/source/installation.mdx; its pull request 1983 for Apple."""
        if self.quantization is None:
            return
        if self.trainable_dtype != "float32":
            yield f"adapters over a base in {self.quantization} must be float32"
        if self.device == "cuda" and self._compute < PASCAL:
            yield f"{self.quantization} of bitsandbytes needs capability 6.0, not {self.capability}"
        if self.device == "mps":
            platform = self.platform or Platform()
            if not (platform.has_macos(14) and platform.has_torch(2, 9)):
                found = f"macOS {platform.macos or 'unknown'} and torch {platform.torch or 'unknown'}"
                yield f"{self.quantization} of bitsandbytes on an Apple GPU needs macOS 14 and torch 2.9, not {found}"

    @property
    def _compute(self) -> tuple[int, ...]:
        return numbers(self.capability)

    @property
    def products_title(self) -> str:
        """The precision of matrix products, e.g. `fp16 autocast`."""
        return self.title.split(",")[0].removesuffix(" + scaler")

    @property
    def title(self) -> str:
        """A short description, e.g. `fp16 autocast + scaler, fp16 base, fp32 adapters`, or `bf16 autocast, nf4 base, fp32 adapters`."""
        if self.rounds_stochastically:
            return "bf16 weights, stochastic rounding"
        if self.autocast_dtype is None:
            words = [f"{self.mode}{' with tf32' if self.tf32 else ''}"]
        else:
            words = [f"{self.mode} autocast{' + scaler' if self.scaler else ''}"]
        if self.quantization is not None or self.base_dtype != self.trainable_dtype:
            words.append(f"{self.base_title} base, {SHORT[self.trainable_dtype]} adapters")
        elif self.autocast_dtype is not None:
            words.append(f"{SHORT[self.base_dtype]} weights")
        return ", ".join(words)


SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The short names of torch's dtypes."""


def base_title(base_dtype: Dtype, mode: Mode, quantization: Quantization | None) -> str:
    """Return a short name of a precision's base: see `Precision.base_title`."""
    rest = SHORT[base_dtype]
    if quantization is None:
        return rest
    return quantization if rest == mode else f"{quantization} and {rest}"


def numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version, e.g. (2, 13, 0) for `2.13.0+cu126`; () if it has none."""
    match = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def _words(dtypes: set[str]) -> str:
    return " and ".join(sorted(dtypes)) or "float32 only"
