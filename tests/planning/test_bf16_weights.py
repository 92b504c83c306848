"""bf16 weights: only where float32 weights fit in no way, only with the plan's optimizer, only on a card with bf16; and what they cost."""

import pytest
from planning.test_plan import facts
from testbed.profiles import profile

from launcher.config.resolve import cards
from launcher.errors import RefusedError
from launcher.planning.alternatives import what_fits
from launcher.planning.assembly import plan
from launcher.planning.gate import check
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.memory import Training, estimate
from launcher.planning.precision.workload import Workload
from launcher.planning.software.installed_packages import unmet
from launcher.planning.software.needed_packages import may_need_more, with_needed
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.model import read_model
from launcher.values.plan import ScriptUse
from launcher.values.precision import Precision

TAKES = ("checkpointing", "precision", "split")
PLANNED = {"optim": "auto"}


def llama(billions):
    """Llama 3.2 1B, 3.2 3B and 3 8B, as they are published."""
    hidden, inner, layers, heads, groups = {1: (2048, 8192, 16, 32, 8), 3: (3072, 8192, 28, 24, 8), 8: (4096, 14336, 32, 32, 8)}[billions]  # fmt: skip
    shape = {
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
    }
    heads = {"num_attention_heads": heads, "num_key_value_heads": groups, "tie_word_embeddings": billions < 8}
    return read_model({**shape, **heads, "dtype": "bfloat16"})


def planned(card, billions, settings=PLANNED, asked="auto", **more):
    job = Job(name="sft", command=("python", "sft.py"), method="full", settings=settings, requirements=("torch",), **more)  # fmt: skip
    return plan(profile(card), LOCAL, job, asked, model=llama(billions), script=ScriptUse(TAKES))


@pytest.mark.parametrize(
    ("card", "billions", "mode", "checkpointing"),
    [
        ("a100_80gb", 3, "bf16", False),
        ("a100_80gb", 8, "bf16-weights", False),
        ("h100", 8, "bf16-weights", False),
        ("rtx_3090_24gb", 1, "fp32", True),  # slower than bf16 weights, but its weights are exact
        ("h200", 8, "fp32", False),
        ("l40s", 3, "bf16-weights", False),
    ],
)
def test_they_are_chosen_only_where_float32_weights_fit_in_no_way(card, billions, mode, checkpointing):
    """Activation checkpointing with float32 weights comes before them."""
    found = planned(card, billions)
    assert (found.ladder[0].mode, found.checkpointing) == (mode, checkpointing)
    assert not [one for one in check(found, None) if one.code == "model-too-large"]
    if mode == "bf16-weights":
        assert len(found.ladder) == 1
        assert found.ladder[0].title == "bf16 weights, stochastic rounding"


def test_they_take_six_bytes_a_parameter_and_the_step_what_it_takes_uncompiled():
    """Counted by hand: weights and gradients of two bytes, two moments of one with a scale for 256, 41 bytes of the embedding."""
    model, rung = llama(8), planned("a100_80gb", 8).ladder[0]
    parts = estimate(Training(model, "full", Workload(optimizer="adamw-planned")), rung)
    assert parts.weights == parts.gradients == 2 * model.parameters
    assert parts.optimizer == (2 + 8 / 256) * model.parameters + 41 * 128256 * 4096
    assert parts.activations == 0


def test_an_optimizer_of_the_scripts_own_keeps_them_off_and_the_refusal_says_what_to_set():
    """It would round to the nearest, and train nothing."""
    found = planned("a100_80gb", 8, {"optim": "adamw_torch"})
    assert found.ladder[0].mode != "bf16-weights"
    (refused,) = [one for one in check(found, None, cards=cards()) if one.code == "model-too-large"]
    assert "--set settings.optim=auto" in refused.mend
    assert not any("optim" in line for line in what_fits(planned("t4", 8, {"optim": "adamw_torch"}), ()))
    with pytest.raises(RefusedError, match="rounds stochastically"):
        planned("a100_80gb", 3, {}, "bf16-weights")


@pytest.mark.parametrize(("card", "method"), [("titan_rtx", "full"), ("a100_80gb", "lora"), ("cpu", "full")])
def test_elsewhere_a_request_is_refused_with_what_they_are_for(card, method):
    """A Turing emulates bf16, and an adapter has few weights to keep."""
    with pytest.raises(RefusedError, match="full fine-tunes"):
        ladder(LadderInputs(profile(card), method), "bf16-weights")


def test_on_request_they_come_alone():
    """No other optimizer reads the checkpoints of torchao's."""
    modes = [rung.mode for rung in planned("a100_80gb", 1, asked="bf16-weights").ladder]
    assert modes == ["bf16-weights"]


@pytest.mark.parametrize("change", [{"autocast_dtype": "bfloat16"}, {"trainable_dtype": "float32"}, {"capability": "7.5"}])  # fmt: skip
def test_another_form_of_them_cannot_be_built(change):
    """Only with all weights in bf16, without autocast, on a card that computes bf16."""
    form = {"base_dtype": "bfloat16", "trainable_dtype": "bfloat16", "device": "cuda", "capability": "8.0"}
    assert Precision(mode="bf16-weights", **form, why="a test")
    with pytest.raises(ValueError, match="bf16"):
        Precision(mode="bf16-weights", **{**form, **change}, why="a test")
    with pytest.raises(ValueError, match="lose small updates"):
        Precision(mode="bf16", **form, why="a test")


def test_the_plan_has_the_optimizers_package_only_where_it_is_used():
    """Other runs of the same job find their environment as it is, also if the probe has looked for the package."""
    job = Job(name="sft", command=("python", "sft.py"), method="full", requirements=("torch",))
    rounding, plain = (planned("a100_80gb", size).ladder for size in (8, 3))
    assert with_needed(job, plain) is job
    needed = with_needed(job, rounding)
    assert needed.requirements == ("torch", "torchao==0.18.0")
    assert with_needed(needed, rounding) is needed
    assert not may_need_more(job.model_copy(update={"requirements": ()}))
    assert not may_need_more(job.model_copy(update={"method": "lora"}))
    here = facts(interpreter={"path": "/usr/bin/python3", "version": "3.11.2", "packages": {"torch": "2.13.0", "torchao": None}})  # fmt: skip
    assert not any(unmet(job.requirements, here))
    assert unmet(needed.requirements, here).missing == ("torchao",)
