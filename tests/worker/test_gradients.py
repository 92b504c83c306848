"""What a rung makes of the gradient: what fp32 makes of it, or no ladder chooses that rung by itself."""

import json
import subprocess
import sys

import pytest
from testbed.client import REPOSITORY

pytestmark = pytest.mark.training

MIN_COSINE = 0.99
"""To the gradient of fp32. A rung below is given on request alone."""
PROGRAM = REPOSITORY / "tests" / "bench" / "gradients.py"


@pytest.mark.long
@pytest.mark.slow(reason="a step in nine precisions, of which a CPU computes fp16 slowly")
def test_every_rung_of_a_ladder_keeps_the_gradient():
    """LoRA and full, all cards, 131,072 tokens a step; the table of a larger model is in tests/bench/PRECISION.md."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "small"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    automatic = [one for one in found if one["is_automatic"]]
    assert {(one["method"], one["title"]) for one in automatic} == {
        ("lora", "fp32"),
        ("lora", "bf16 autocast, bf16 base, fp32 adapters"),
        ("lora", "fp16 autocast + scaler, fp16 base, fp32 adapters"),
        ("lora", "fp16 autocast + scaler, fp32 weights"),
        ("full", "fp32"),
        ("full", "bf16 autocast, fp32 weights"),
        ("full", "fp16 autocast + scaler, fp32 weights"),
        ("full", "bf16 weights, stochastic rounding"),
    }
    lost = [one for one in automatic if one["cosine"] < MIN_COSINE or abs(one["norm_ratio"] - 1) > 0.02]
    assert lost == []
    seen = {one["title"] for one in found if one["cosine"] < MIN_COSINE}
    assert "fp16 base, fp32 adapters, no scaler" in seen  # else the measure would see no loss at all
