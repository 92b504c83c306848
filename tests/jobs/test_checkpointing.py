"""`sft` and `distill` compute activations again where the plan says so: each layer sees a micro-batch twice."""

import pytest

pytestmark = pytest.mark.training

COUNTED = """
import atexit
from transformers.models.llama import modeling_llama
plain, calls = modeling_llama.LlamaMLP.forward, []
def counted(self, *words, **more):
    if self.training and torch.is_grad_enabled():
        calls.append(1)
    return plain(self, *words, **more)
modeling_llama.LlamaMLP.forward = counted
atexit.register(lambda: open("ledger", "w").write(str(len(calls))))
"""
WORDS = ("--job", "./job.toml", "--set", "steps=2", "--set", "batch.global=4", "--set", "batch.micro=2")


@pytest.mark.slow(reason="two trainings")
@pytest.mark.parametrize("name", [pytest.param("sft", marks=pytest.mark.long), "distill"])
def test_a_job_takes_checkpointing_from_the_plan(request, name):
    """The witness counts in the model itself: two steps of two micro-batches, in one layer."""
    client = request.getfixturevalue(f"{name}_project")
    with (client.project / "shared.py").open("a") as file:
        file.write(COUNTED)
    for words, calls in (((), 4), (("--set", "checkpointing=true"), 8)):
        run = client.detached("--host", "local", *WORDS, *words)
        client.ok("attach", run)
        ledger = client.home / ".launch" / "runs" / run / "work" / "code" / "ledger"
        assert int(ledger.read_text()) == calls
