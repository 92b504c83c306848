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

    scoring = load("scoring")
    (demo,) = (client.home / ".launch" / "cache").glob("demo-*")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(demo / "model"), adapter)
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    samples = [json.loads(line) for line in (adapter.parent / "samples.jsonl").read_text().splitlines()]
    last = [sample for sample in samples if sample["step"] == STEPS]
    alike = 0
    for sample in last:
        tokens = tokenizer(sample["prompt"], return_tensors="pt", return_token_type_ids=False)
        made = model.generate(**tokens, max_new_tokens=50, do_sample=False)[0, tokens["input_ids"].shape[1] :]
        answer = scoring.read_answer(tokenizer.decode(made, skip_special_tokens=True))
        alike += answer is not None and answer == scoring.read_answer(sample["output"])
    assert len(last) > 3
    assert alike >= (1 - 2 * NEAR) * len(last)  # its base is not the rounded one that it learnt over
