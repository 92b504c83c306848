"""A base that was saved quantized: which methods can train it."""

import pytest
from planning.test_memory import LLAMA_7B
from testbed.profiles import profile

from launcher.planning.assembly import plan
from launcher.planning.gate import check
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.model import read_model
from launcher.values.plan import ScriptUse

TAKES = ("base", "checkpointing", "precision", "split")
BITSANDBYTES = {"load_in_4bit": True}
NO_WORD = {"bits": 4}
OTHERS = [{"quant_method": name} for name in ("gptq", "awq", "fp8", "compressed-tensors")]


def said(method, quantization, takes=TAKES):
    model = read_model({**LLAMA_7B, **({"quantization_config": quantization} if quantization else {})})
    job = Job(name="x", command=("python", "a.py"), model="org/m", method=method)
    one = plan(profile("b300_288gb"), LOCAL, job, model=model, script=ScriptUse(takes))
    return [found for found in check(one, None) if found.code == "saved-quantized"]


@pytest.mark.parametrize(
    ("method", "quantization"),
    [*(("qlora", one) for one in (*OTHERS, {"quant_method": "mxfp4"}, NO_WORD, {"quant_method": "\x1b[31m"})),
     *(("full", one) for one in (*OTHERS, BITSANDBYTES, {"load_in_8bit": True}))],
)  # fmt: skip
def test_a_method_that_cannot_train_a_quantized_base_is_refused_with_the_one_that_can(method, quantization):
    """transformers raises a ValueError, when the model is loaded or when its trainer begins."""
    (found,) = said(method, quantization)
    assert found.level == "refuse"
    assert "--set method=lora" in found.mend
    assert found.message.isprintable()
    (found,) = said(method, quantization, takes=("precision",))
    assert found.level == "note", "a script that loads the model its own way may dequantize it"


@pytest.mark.parametrize(
    ("method", "quantization"),
    [("qlora", None), ("full", None), ("qlora", BITSANDBYTES), ("full", {"quant_method": "mxfp4"}),
     *(("lora", one) for one in (*OTHERS, BITSANDBYTES, {"quant_method": "mxfp4"}))],
)  # fmt: skip
def test_what_can_be_trained_passes(method, quantization):
    """MXFP4 is dequantized by transformers at loading."""
    assert said(method, quantization) == []
