"""Tokens per second, and the share of a card's peak rate."""

import importlib.util
import json

import pytest

from launcher.agent.attempt import attempt_record

is_trained_here = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@pytest.fixture
def card(run):
    """Make the run's attempt one on two cards of 10 TFLOP/s."""
    path = run / "attempt.json"
    values = json.loads(path.read_text())
    values["peak_tflops"] = 10.0
    values["split"]["ranks"] = 2
    path.write_text(json.dumps(values))


@pytest.fixture
def clock(worker, monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(worker.throughput.time, "monotonic", lambda: now[0])
    return now


def llama(**more):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, **more,
        )
    )  # fmt: skip


LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48
"""Queries and output, keys and values, a gated MLP."""
MATRICES = 2 * LAYER + 100 * 32


@is_trained_here
@pytest.mark.training
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_full_fine_tune_costs_six_operations_a_parameter_and_token(worker, is_tied):
    """An embedding is looked up; the head is multiplied, whether or not it is the embedding too."""
    model = llama(tie_word_embeddings=is_tied)
    assert worker.throughput.flops_per_token(model) == 6 * MATRICES
    assert worker.throughput.flops_per_token(model, [llama()]) == 8 * MATRICES


@is_trained_here
@pytest.mark.training
def test_an_adapter_needs_no_gradients_of_the_base(worker):
    """Four operations for each matrix, six for those of the adapter."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama(), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4))
    adapter = 2 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))
    assert worker.throughput.flops_per_token(model) == 4 * MATRICES + 6 * adapter


@is_trained_here
@pytest.mark.training
def test_nothing_is_claimed_of_experts_and_shards(worker):
    """A token passes a few experts only; a shard does not show the shape of its matrix."""
    import torch

    model = llama()
    model.config.num_local_experts = 8
    assert worker.throughput.flops_per_token(model) is None
    assert worker.throughput.flops_per_token(torch.nn.LayerNorm(4)) is None


@is_trained_here
@pytest.mark.training
def test_utilisation_is_of_all_cards(worker, card, clock):
    """A thousand tokens in 2 s, each of 6 x 14,000 operations, on two cards of 10 TFLOP/s."""
    speed = worker.Speedometer(llama())
    speed.add(600)
    speed.add(400)
    clock[0] += 2
    assert speed.read() == pytest.approx({"tokens_per_s": 500, "mfu": 500 * 6 * MATRICES / 20e12})
    clock[0] += 2
    assert speed.read() == {}
    speed.add(5)
    clock[0] += 10
    speed.restart()
    speed.add(7)
    clock[0] += 1
    assert speed.read()["tokens_per_s"] == 7


def test_without_a_known_card_there_is_no_utilisation(worker, run, clock):
    """A CPU's rate is published nowhere."""
    speed = worker.Speedometer()
    speed.add(10)
    clock[0] += 1
    assert speed.read() == {"tokens_per_s": 10}


@pytest.mark.parametrize(
    ("precision", "rate"),
    [
        ({"base_dtype": "float32", "autocast_dtype": None, "tf32": False}, 1.0),
        ({"base_dtype": "float32", "autocast_dtype": None, "tf32": True}, 2.0),
        ({"base_dtype": "float32", "autocast_dtype": "float16", "tf32": True}, 3.0),
        ({"base_dtype": "bfloat16", "autocast_dtype": None, "tf32": True}, None),
    ],
)
def test_the_peak_is_that_of_the_products(precision, rate):
    """By autocast, else by the base; what the card's data sheet lacks is not made up, nor is a rehearsed card's."""
    plan = {"profile": {"peak": {"fp32": 1.0, "tf32": 2.0, "fp16": 3.0, "bf16": None}}}
    assert attempt_record._peak_tflops(plan, precision) == rate
    assert attempt_record._peak_tflops({**plan, "rehearsed": True}, precision) is None
    assert attempt_record._peak_tflops({"profile": {}}, precision) is None


@is_trained_here
@pytest.mark.training
@pytest.mark.parametrize("has_mask", [True, False])
def test_a_trial_counts_no_padding(run, clock, worker, has_mask):
    """By the mask, or where a script has none by the token that pads."""
    import torch
    from launcher_worker.trials.meters import StepMeter

    model = llama(pad_token_id=0).train()
    meter = StepMeter(model)
    tokens = torch.tensor([[5, 6, 7, 0], [5, 0, 0, 0]])
    mask = {"attention_mask": tokens.sign()} if has_mask else {}
    meter.begin()
    model(input_ids=tokens, **mask)
    meter.count_step()
    clock[0] += 2
    meter.end()
    assert meter.figures()["tokens_per_s"] == 2
