"""The estimate of memory: what adds to it, and by how much. `tests/worker/test_memory.py` compares it with measured peaks."""

import pytest
from testbed.profiles import profile

from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.memory import GB, Training, estimate, needed_gb
from launcher.planning.precision.workload import Workload, read_workload
from launcher.values.model import read_model

LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
            "tie_word_embeddings": False, "vocab_size": 32000}  # fmt: skip
MODEL = read_model(LLAMA_7B)
BILLIONS = MODEL.parameters / 1e9


def states_gb(training, form):
    """Weights, gradients and the optimizer's state, as in a step whose passes are its peak."""
    return estimate(training, form, 10_000).states / GB


def precision(name, mode, method="full"):
    return ladder(LadderInputs(profile(name), method, None), mode).rungs[0]


BF16, FP32 = precision("h200", "bf16"), precision("t4", "fp32")


def peak(method="full", form=BF16, **workload):
    return needed_gb(Training(MODEL, method, Workload(**workload)), form)


def test_autocast_over_float32_weights_keeps_two_bytes_more_for_each_parameter_that_multiplies():
    """Frozen or trained; an input embedding of its own is looked up and not multiplied."""
    lean, wide = ladder(LadderInputs(profile("titan_rtx"), "lora", None)).rungs[:2]
    assert (lean.base_dtype, wide.base_dtype) == ("float16", "float32")
    more = peak("lora", wide) - peak("lora", lean)
    copies = 2 * (BILLIONS - 32000 * 4096 / 1e9)
    assert more == pytest.approx(2 * BILLIONS + copies, rel=1e-6)


@pytest.mark.parametrize(
    ("optim", "kept", "more_at_a_step"),
    [
        ("adamw_torch", 16, 4),
        ("adamw_torch_fused", 16, 0),
        ("adamw_8bit", 10, 0),
        ("paged_adamw_8bit", 10, 0),
        ("lion_8bit", 9, 0),
        ("sgd", 8, 0),
        ("adafactor", 8, 0.16),
        ("something_new", 16, 4),
    ],
)
def test_an_optimizer_has_its_state_and_what_a_step_needs(optim, kept, more_at_a_step):
    """Bytes a parameter, with float32 weights and gradients."""
    workload = read_workload({"optim": optim, "max_length": 1}, None, MODEL)
    training = Training(MODEL, "full", workload)
    assert states_gb(training, FP32) / BILLIONS == pytest.approx(kept, rel=1e-6)
    assert needed_gb(training, FP32) / BILLIONS == pytest.approx(kept + more_at_a_step, abs=0.01)


@pytest.mark.parametrize(
    ("card", "mode", "optim"),
    [
        ("h200", "bf16", "adamw_torch_fused"),
        ("h200", "fp32", "adamw_torch_fused"),
        ("t4", "fp16", "adamw_torch"),
        ("t4", "fp32", "adamw_torch_fused"),
        ("cpu", "fp32", "adamw_torch"),
    ],
)
def test_the_plan_s_optimizer_is_fused_on_a_card_unless_gradients_are_scaled(card, mode, optim):
    """In its memory `auto` is the one that is used at that precision."""
    form = precision(card, mode)
    sizes = [
        needed_gb(Training(MODEL, "full", read_workload({"optim": name, "max_length": 1}, None, MODEL)), form)
        for name in ("auto", optim)
    ]
    assert sizes[0] == sizes[1]


def test_several_ranks_keep_their_gradients_twice():
    """DistributedDataParallel's buckets hold a copy: 4 bytes more for each trained parameter."""
    alone, beside = (
        estimate(Training(MODEL, "full", Workload(ranks=ranks)), BF16).gradients for ranks in (1, 2)
    )
    assert (alone, beside) == (4 * MODEL.parameters, 8 * MODEL.parameters)


def test_an_estimate_has_parts_that_are_its_total():
    """Where the optimizer's step is the peak no activation is left; else it is what the passes add."""
    long, short = (Training(MODEL, "full", Workload(tokens=tokens)) for tokens in (4096, 1))
    passes, step = (estimate(training, FP32) for training in (long, short))
    assert passes.weights == passes.gradients == 4 * MODEL.parameters
    assert (passes.optimizer, step.optimizer) == (8 * MODEL.parameters, 12 * MODEL.parameters)
    assert passes.activations > 0
    assert step.activations == 0
    assert needed_gb(long, FP32) == sum(passes) / GB


LLAMA_3_8B = {**LLAMA_7B, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
BITSANDBYTES = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("quantization", "gigabytes"),
    [
        ({**BITSANDBYTES, "bnb_4bit_use_double_quant": True}, 5.70),
        (BITSANDBYTES, 6.03),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 5.73),
        ({"quant_method": "awq", "bits": 4}, 5.59),
        ({"load_in_8bit": True}, 9.08),
        (None, 16.06),
    ],
)
def test_a_base_that_was_saved_quantized_has_its_embedding_and_head_in_full(quantization, gigabytes):
    """A Llama 3 8B: 6.98 billion weights in linear layers with their scales, 1.05 billion in bf16."""
    model = read_model({**LLAMA_3_8B, "quantization_config": quantization})
    lora = Training(model, "lora", Workload(optimizer="sgd"))
    weights = estimate(lora, ladder(LadderInputs(profile("h200"), "lora")).rungs[0]).weights
    assert (weights - 4 * lora.trained) / GB == pytest.approx(gigabytes, abs=0.005)


def test_a_base_that_is_quantized_at_loading_takes_as_much_as_one_that_was_saved_so():
    """With double quantization, which the worker asks for."""
    saved = read_model(
        {**LLAMA_3_8B, "quantization_config": {**BITSANDBYTES, "bnb_4bit_use_double_quant": True}}
    )
    plain = read_model(LLAMA_3_8B)
    forms = [ladder(LadderInputs(profile("titan_rtx"), method)).rungs for method in ("qlora", "lora")]
    for quantized, half in zip(*forms, strict=True):
        assert needed_gb(Training(plain, "qlora"), quantized) == needed_gb(Training(saved, "lora"), half)


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer():
    """Much less than all layers; the loss's logits remain."""
    long = {"form": FP32, "tokens": 8192, "optimizer": "sgd"}
    plain, again = peak(**long), peak(**long, is_checkpointed=True)
    kept = states_gb(Training(MODEL, "full", Workload(optimizer="sgd")), FP32)
    assert (again - kept) < (plain - kept) / 9
    assert again - kept > 32 * 8192 * 4096 * 4 / 1e9


def test_settings_say_what_takes_memory():
    """The names that scripts have for it; a teacher of unknown shape counts as one like the student."""
    read = read_workload(
        {"max_length": 512, "lora_r": 8, "gradient_checkpointing": True, "teacher": "org/big"}, None, MODEL
    )
    assert read == Workload(512, "adamw", 8, is_checkpointed=True, teacher=MODEL)
    assert read_workload({"max_length": True, "lora_rank": 0, "teacher": ""}, MODEL, None) == Workload()
    teacher = peak("lora", teacher=MODEL) - peak("lora")
    assert teacher == pytest.approx(4 * BILLIONS + 20 * 32000 * 1024 / 1e9, rel=1e-6)
    half = read_workload({"teacher_dtype": "bfloat16"}, MODEL, None, has_teacher=True)
    assert half == Workload(teacher=MODEL, teacher_dtype="bfloat16")
    assert read_workload({"teacher_dtype": "bfloat16"}, MODEL, None) == Workload()
    assert read_workload({"teacher_dtype": "base"}, MODEL, None, has_teacher=True).teacher_dtype is None
    wide, lean = (peak("lora", FP32, teacher=MODEL, teacher_dtype=dtype) for dtype in (None, "bfloat16"))
    assert wide - lean == pytest.approx(2 * BILLIONS, rel=1e-6)


def test_the_rank_of_an_adapter_counts():
    """At 64 it is four times as large as at 16."""
    sizes = [Training(MODEL, "lora", Workload(lora_rank=rank)).trained for rank in (16, 64)]
    assert sizes[0] == 39_976_960  # as peft prints for all linear layers of Llama 2 7B
    assert sizes[1] == 4 * sizes[0]


def test_gpt2_is_read_by_its_own_names():
    """It writes n_embd where others write hidden_size."""
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
              "activation_function": "gelu_new"}  # fmt: skip
    model = read_model(config)
    assert model.parameters == pytest.approx(124e6, rel=0.02)
    assert (model.mlp, model.mlp_width, model.keys) == ("gelu_new", 3072, 768)


def test_only_the_experts_that_a_token_passes_have_activations():
    """All of them have weights."""
    moe = {**LLAMA_7B, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1000}
    assert read_model(moe).mlp_width == 2000
    assert read_model(moe).parameters > read_model({**moe, "num_experts": 4}).parameters


MIXTRAL = {
    **LLAMA_7B,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
}
"""Mixtral 8x7B: 45 of its 46.7 billion parameters are in experts, which transformers 5 has as one tensor in each layer."""


def test_experts_are_not_quantized_at_loading():
    """bitsandbytes quantizes `nn.Linear`; a model that was saved quantized has them so."""
    model = read_model(MIXTRAL)
    assert model.expert_parameters == pytest.approx(45.1e9, rel=0.01)
    rung = ladder(LadderInputs(profile("h200"), "qlora")).rungs[0]
    weights = estimate(Training(model, "qlora"), rung).weights / GB
    assert weights == pytest.approx(2 * 45.1 + 0.7 + 2 * 0.26, rel=0.02)
    saved = read_model({**MIXTRAL, "quantization_config": BITSANDBYTES})
    assert estimate(Training(saved, "lora"), rung).weights / GB < 30
    assert "expert_parameters" not in read_model({**MIXTRAL, "num_local_experts": 1}).model_dump_json()


def test_embeddings_of_each_layer_count_and_are_not_quantized():
    """Gemma 3n E2B has 5.4 billion parameters with them, two billion of which a token is multiplied by."""
    config = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
              "num_hidden_layers": 30, "vocab_size": 262400}  # fmt: skip
    plain = read_model(config)
    own = read_model({**config, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256})
    more = 262144 * 256 * 30
    assert (own.parameters - plain.parameters, own.embeddings - plain.embeddings) == (more, more)
    assert own.multiplied == plain.multiplied


def test_mxfp4_is_dequantized_at_loading():
    """As gpt-oss is saved: transformers cannot train it otherwise."""
    saved = read_model({**MIXTRAL, "quantization_config": {"quant_method": "mxfp4"}})
    assert (saved.weight_bits, saved.quant_method) == (None, "mxfp4")
