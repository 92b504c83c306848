"""A base in 4 bits, with the real bitsandbytes on a CPU: how it is loaded, computes, and keeps its gradients."""

import importlib
import importlib.util

import pytest
from testbed.tables import mostly_long

# Looked for, not imported: that takes seconds, also where no training is selected.
if not all(map(importlib.util.find_spec, ("torch", "transformers", "peft", "bitsandbytes"))):
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

RUNGS = {
    "bf16": ("bf16", {}),
    "fp16": ("fp16", {}),
    "fp16 over fp32": ("fp16", {"base_dtype": "float32"}),
    "fp32": ("fp32", {}),
}
"""The rungs of a base in 4 bits, as a mode and what else its precision says."""


@pytest.fixture
def base(llama, tmp_path):
    """A small model's folder."""
    llama("bfloat16", hidden_size=64, intermediate_size=128).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def loaded(torch, worker, run_of, base, lora):
    """Load the model as the plan of a rung says, with an adapter that is not zero, and prepare it."""
    from transformers import AutoModelForCausalLM

    def load(rung="fp32", cast=None, **own):
        mode, of_precision = RUNGS[rung]
        run_of(mode, {**of_precision, "quantization": "nf4"}, method="qlora")
        torch.manual_seed(0)
        model = lora(AutoModelForCausalLM.from_pretrained(base, **worker.model_arguments(**own)))
        for name, part in model.named_parameters():
            if "lora_B" in name:
                part.data.normal_(std=0.1)
            if cast is not None and part.requires_grad:
                part.data = part.data.to(cast)
        return worker.prepare(model)

    return load


def layers(model):
    """The quantized layers."""
    import bitsandbytes

    return [one for one in model.modules() if isinstance(one, bitsandbytes.nn.Linear4bit)]


def gradient(torch, worker, model, rows):
    """The gradient of a micro-batch, as one row."""
    model.zero_grad()
    batch = torch.stack([row["input_ids"] for row in rows[:4]])
    with worker.autocast():
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    return torch.cat([part.grad.flatten() for part in model.parameters() if part.requires_grad])


@pytest.mark.parametrize("rung", RUNGS)
def test_a_base_in_4_bits_is_loaded_as_planned(torch, loaded, rung):
    """NF4 with double quantization, products in the rung's dtype; embedding, head and norms in the base's, adapters in float32."""
    model = loaded(rung)
    mode, of_precision = RUNGS[rung]
    half = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[mode]
    assert len(layers(model)) == 2 * 7
    for layer in layers(model):
        state = layer.weight.quant_state
        assert (state.quant_type, state.nested, layer.compute_dtype) == ("nf4", True, half)
    plain = [part for part in model.parameters() if not hasattr(part, "quant_state")]
    rest = torch.float32 if of_precision else half
    assert {part.dtype for part in plain if not part.requires_grad} == {rest}
    assert {part.dtype for part in plain if part.requires_grad} == {torch.float32}


@mostly_long("rung", RUNGS, ci=(0, 1))
def test_every_rung_trains_and_its_gradient_is_that_of_fp32(torch, worker, loaded, train, rows, rung):
    """Over the same 4 bits; the proof counts them."""
    reference = gradient(torch, worker, loaded("fp32"), rows)
    model = loaded(rung)
    found = gradient(torch, worker, model, rows)
    assert torch.nn.functional.cosine_similarity(reference, found, dim=0) > 0.99
    model.zero_grad()
    trainer = train(model, max_steps=3)
    assert trainer.state.global_step == 3
    assert {part.dtype for part in model.parameters() if part.requires_grad} == {torch.float32}
    seen = importlib.import_module("launcher_worker.precision.precision_seen").dtypes_of(
        part for part in model.parameters() if not part.requires_grad
    )
    assert seen["nf4"] == 2 * 7
    assert len(seen) == 2


def test_an_evaluation_leaves_the_gradients_whole(torch, worker, loaded, rows):
    """Where the processor has AVX512-BF16, bitsandbytes packs weights for it, through which no gradient flows."""
    model = loaded()
    before = gradient(torch, worker, model, rows)
    evaluate(torch, model, rows)
    assert torch.equal(gradient(torch, worker, model, rows), before)


def test_an_evaluation_before_prepare_leaves_them_whole_too(torch, worker, loaded, rows):
    """What was packed already is unpacked; its scales stay rounded."""
    model = loaded()
    before = gradient(torch, worker, model, rows)
    packs = importlib.import_module("bitsandbytes.functional").has_avx512bf16()
    for layer in layers(model):
        layer.support_avx512bf16_for_cpu = packs
    evaluate(torch, model, rows)
    assert packs == any(
        getattr(one.weight.quant_state, "packing_format_for_cpu", False) for one in layers(model)
    )
    worker.prepare(model)
    after = gradient(torch, worker, model, rows)
    assert torch.nn.functional.cosine_similarity(before, after, dim=0) > 0.999


def evaluate(torch, model, rows):
    model.eval()
    with torch.no_grad():
        model(input_ids=rows[0]["input_ids"][None])
    model.train()


@pytest.mark.parametrize("rung", ["fp16", "bf16"])
def test_adapters_that_a_library_has_cast_become_float32_again(torch, worker, loaded, rows, rung):
    """As TRL casts them to bf16, whose gradients a scaler does not unscale. Without autocast, too, the model answers."""
    model = loaded(rung, cast=torch.bfloat16)
    assert {part.dtype for part in model.parameters() if part.requires_grad} == {torch.float32}
    model.eval()
    with torch.no_grad():
        plain = model(input_ids=rows[0]["input_ids"][None]).logits
        with worker.autocast():
            under_autocast = model(input_ids=rows[0]["input_ids"][None]).logits
    assert torch.nn.functional.cosine_similarity(plain.float(), under_autocast.float(), dim=-1).min() > 0.99


def test_layers_of_a_script_s_own_loading_compute_in_the_plan_s_dtype(torch, loaded):
    """Its own keywords win, but on a card without bf16 it would be emulated."""
    from transformers import BitsAndBytesConfig

    own = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = loaded("fp16", quantization_config=own)
    assert {(one.weight.quant_state.quant_type, one.compute_dtype) for one in layers(model)} == {
        ("fp4", torch.float16)
    }


def test_a_base_that_was_not_quantized_is_said(torch, loaded, capsys):
    """It trains, and takes more memory than was planned."""
    assert layers(loaded("bf16", quantization_config=None)) == []
    assert "nothing is quantized, where the plan has an nf4 base" in capsys.readouterr().out


def test_the_start_says_what_the_base_is(worker, run_of, capsys):
    """In the words of the ladder."""
    run_of("fp16", {"quantization": "nf4", "base_dtype": "float32"}, method="qlora")
    worker.knobs().precision  # noqa: B018  # reading it announces it
    assert "fp16 autocast over an nf4 and fp32 base, fp32 trainables" in capsys.readouterr().out
