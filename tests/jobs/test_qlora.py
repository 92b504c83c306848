"""The demo, fine-tuned over a base in 4 bits on this CPU: it learns as a LoRA over the plain base does."""

import json

import pytest
from testbed.client import REPOSITORY, until_left
from testbed.job_programs import load

pytestmark = [pytest.mark.training, pytest.mark.long]

STEPS, HELD_OUT = 200, 200
NEAR = 0.02
"""The farthest that two accuracies may be from each other."""


def trained(client, method):
    """Train the demo with a method; give its accuracy and the folder of its adapter."""
    words = (
        "--set",
        f"method={method}",
        "--set",
        f"steps={STEPS}",
        "--set",
        f"settings.eval_limit={HELD_OUT}",
    )
    run = client.detached("--job", str(REPOSITORY / "jobs" / "sft.toml"), "--set", "requirements=[]", *words)
    folder = client.home / ".launch" / "runs" / run
    until_left(folder, 900)
    artifacts = folder / "work" / "artifacts"
    return json.loads((artifacts / "result.json").read_text())["accuracy"], artifacts / "adapter"


@pytest.mark.timeout(2000)
def test_it_learns_as_a_lora_does_and_its_adapter_fits_the_plain_base(client):
    """Accuracy on held-out questions, and once more of the adapter alone, loaded with peft over the base in float32."""
    pytest.importorskip("bitsandbytes")
    plain, _ = trained(client, "lora")
    quantized, adapter = trained(client, "qlora")
    assert plain > 0.9
    assert abs(quantized - plain) <= NEAR

    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sft = load("sft")
    (demo,) = (client.home / ".launch" / "cache").glob("demo-*")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(demo / "model"), adapter)
    lines = (demo / "eval.jsonl").read_text().splitlines()[:HELD_OUT]
    scores = sft.evaluate(
        model,
        AutoTokenizer.from_pretrained(adapter),
        [json.loads(line) for line in lines],
        50,
        sft.Sft(),
    )
    assert abs(scores["accuracy"] - quantized) <= NEAR
