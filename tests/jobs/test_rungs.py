"""The same training under other rungs and splits: its losses stay beside those of fp32, within a tolerance that is stated."""

import json

import pytest
from testbed.client import REPOSITORY
from testbed.llama import save_small_llama

pytestmark = pytest.mark.training

TOLERANCE = 0.02
"""The farthest that a loss may be from fp32's, as a share of the first loss; docs/same-curve.md shows how far it is for `sft`."""
WORDS = ("--set", "model=./model", "--set", "method=lora", "--set", "batch.global=8", "--name", "rung")
RUNGS = {
    "another split": ("--profile", "cpu", "--set", "batch.micro=2"),
    "bf16": ("--profile", "a100_40gb", "--rehearse"),
    "fp16 over an fp16 base": ("--profile", "titan_rtx", "--rehearse"),
}


def losses(client, *words):
    """What the script itself wrote of each step's loss."""
    ledger = client.home / "ledger"
    ledger.unlink(missing_ok=True)
    client.ok(*WORDS, *words, "-e", f"LEDGER={ledger}", "--", "python", "poisoned.py", "none", timeout=300)
    return [float(loss) for loss in json.loads(ledger.read_text())["losses"]]


@pytest.mark.long
def test_other_rungs_and_splits_learn_as_fp32_does(client):
    """Forty steps of 8 examples, each way."""
    for path in (REPOSITORY / "tests" / "reports").glob("*.py"):
        (client.project / path.name).write_text(path.read_text())
    save_small_llama(client.project / "model")
    plain = losses(client, "--profile", "cpu")
    assert len(plain) == 40
    assert plain[-1] < 0.9 * plain[0]
    for what, words in RUNGS.items():
        found = losses(client, *words)
        farthest = max(abs(one - other) for one, other in zip(plain, found, strict=True)) / plain[0]
        assert 0 < farthest < TOLERANCE, f"{what}: {farthest:.2%}"
