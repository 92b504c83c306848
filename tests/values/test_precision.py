"""A precision that would crash, or would not learn, cannot be built; the message says why."""

import pytest
from pydantic import ValidationError

from launcher.values.precision import Platform, Precision

TURING = {"mode": "fp16", "device": "cuda", "capability": "7.5", "base_dtype": "float16", "why": "a test"}
SCALED = {**TURING, "autocast_dtype": "float16", "scaler": True}
AMPERE = {
    **TURING,
    "mode": "bf16",
    "capability": "8.0",
    "base_dtype": "bfloat16",
    "autocast_dtype": "bfloat16",
}
NATIVE = {**TURING, "mode": "fp16-native", "trainable_dtype": "float16", "adam_eps": 1e-4}
FP32 = {**TURING, "mode": "fp32", "base_dtype": "float32"}
CPU = {**FP32, "device": "cpu", "capability": None}
APPLE = {**AMPERE, "device": "mps", "capability": None}
QUANTIZED = {**AMPERE, "quantization": "nf4"}
NEW = {"torch": "2.13.0", "macos": "15.1"}


@pytest.mark.parametrize("values", [SCALED, AMPERE, NATIVE, FP32, CPU, {**APPLE, "platform": NEW}, QUANTIZED,
                                    {**SCALED, "capability": "6.0", "quantization": "nf4"}, {**CPU, "quantization": "nf4"},
                                    {**APPLE, "platform": NEW, "quantization": "nf4"}])  # fmt: skip
def test_what_works_can_be_built(values):
    """The rules below refuse what crashes, and nothing beside it."""
    assert Precision(**values).title


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**SCALED, "trainable_dtype": "float16"}, "a scaler cannot unscale float16 gradients"),
        ({**SCALED, "scaler": False}, "loses the gradients of float32 trainables without a scaler"),
        (TURING, "loses the gradients of float32 trainables without a scaler"),
        ({**FP32, "scaler": True}, "for fp16 autocast only"),
        ({**AMPERE, "scaler": True}, "for fp16 autocast only"),
        ({**NATIVE, "adam_eps": 1e-8}, "eps 1e-08 is below the smallest normal number of float16"),
        ({**NATIVE, "adam_eps": 1e-6}, "eps 1e-06 is below the smallest normal number of float16"),
        ({**NATIVE, "autocast_dtype": "float16"}, "fp16-native has float16 weights and no autocast"),
        ({**TURING, "trainable_dtype": "float16", "adam_eps": 1e-4}, "they must be float32 in mode fp16"),
        ({**AMPERE, "trainable_dtype": "bfloat16"}, "bfloat16 trainables lose small updates"),
        ({**AMPERE, "capability": "7.5"}, r"capability 7\.5 < 8\.0 emulates bf16"),
        ({**AMPERE, "capability": "6.0"}, r"capability 6\.0 < 8\.0 emulates bf16"),
        ({**AMPERE, "capability": None}, "capability is required for device 'cuda'"),
        ({**CPU, "capability": "8.0"}, "capability is required for device 'cuda'"),
        ({**FP32, "tf32": True}, r"tf32 needs capability 8\.0"),
        ({**CPU, "tf32": True}, "tf32 needs a CUDA card"),
        ({**SCALED, "device": "cpu", "capability": None}, "silently disables fp16 on a CPU"),
        ({**NATIVE, "device": "cpu", "capability": None}, "silently disables fp16 on a CPU"),
        ({**FP32, "base_dtype": "float16"}, "mode fp32 means float32 only, not float16"),
        ({**AMPERE, "mode": "fp16"}, "mode fp16 means float16, not bfloat16"),
        ({**FP32, "mode": "bf16"}, "mode bf16 means bfloat16, not float32 only"),
        (APPLE, "needs macOS 14, not an unknown version"),
        ({**APPLE, "platform": {**NEW, "macos": "13.6"}}, r"needs macOS 14, not 13\.6"),
        ({**APPLE, "platform": {**NEW, "torch": "2.5.1"}}, r"bf16 autocast on an Apple GPU needs torch 2\.6"),
        (
            {**SCALED, "device": "mps", "capability": None, "platform": {**NEW, "torch": "2.7.1"}},
            r"a gradient scaler on an Apple GPU needs torch 2\.8, not 2\.7\.1",
        ),
        ({**SCALED, "attention": "flash_attention_2"}, r"flash_attention_2 needs a card of capability 8\.0, not capability 7\.5"),
        ({**CPU, "attention": "flash_attention_2"}, "not cpu"),
        ({**FP32, "capability": "8.0", "attention": "flash_attention_2"}, "computes in fp16 or bf16 only"),
        ({**SCALED, "capability": "6.0", "compile": True}, r"Triton, which needs capability 7\.0, not capability 6\.0"),
        ({**APPLE, "platform": NEW, "compile": True}, "not an Apple GPU"),
        ({**NATIVE, "quantization": "nf4"}, "adapters over a base in nf4 must be float32"),
        ({**FP32, "capability": "5.2", "quantization": "nf4"}, r"nf4 of bitsandbytes needs capability 6\.0, not 5\.2"),
        ({**APPLE, "quantization": "nf4", "platform": {**NEW, "torch": "2.8.0"}}, r"needs macOS 14 and torch 2\.9, not macOS 15\.1 and torch 2\.8\.0"),
        ({**CPU, "device": "mps", "quantization": "nf4"}, "not macOS unknown"),
    ],
)  # fmt: skip
def test_what_would_crash_cannot_be_built(values, reason):
    """Each rule of the field, with its reason."""
    with pytest.raises(ValidationError, match=reason):
        Precision(**values)


@pytest.mark.parametrize(
    ("values", "title"),
    [
        (QUANTIZED, "bf16 autocast, nf4 base, fp32 adapters"),
        ({**SCALED, "quantization": "nf4"}, "fp16 autocast + scaler, nf4 base, fp32 adapters"),
        ({**SCALED, "base_dtype": "float32", "quantization": "nf4"}, "fp16 autocast + scaler, nf4 and fp32 base, fp32 adapters"),
        ({**FP32, "quantization": "nf4"}, "fp32, nf4 base, fp32 adapters"),
    ],
)  # fmt: skip
def test_a_quantized_base_is_told_in_a_few_words(values, title):
    """What is not quantized is named where it has another dtype than the products."""
    assert Precision(**values).title == title


def test_a_precision_that_is_not_quantized_is_written_as_before():
    """Hosts know what failed there by the digest of this."""
    assert "quantization" not in Precision(**AMPERE).model_dump(mode="json")
    assert Precision(**QUANTIZED).digest != Precision(**AMPERE).digest


def test_a_changed_copy_is_checked_too():
    """Pydantic's own copy would let anything pass."""
    with pytest.raises(ValidationError, match="emulates bf16"):
        Precision(**AMPERE).model_copy(update={"capability": "7.5"})


@pytest.mark.parametrize(
    ("version", "least", "is_enough"),
    [
        ("2.13.0+cu126", (2, 8), True),
        ("2.8.0", (2, 8), True),
        ("2.7.1", (2, 8), False),
        (None, (2, 3), False),
    ],
)
def test_versions_are_compared_as_numbers(version, least, is_enough):
    """2.13 comes after 2.8; what is not known is not enough."""
    assert Platform(torch=version).has_torch(*least) is is_enough
