"""Ladders: which precisions a card, a model and a method allow, in which order, and why not the others."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from testbed.profiles import profile, profiles

from launcher.copy.request import Request
from launcher.errors import RefusedError
from launcher.planning.assembly import plan
from launcher.planning.gate import check
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.split import split
from launcher.planning.precision.workload import Workload
from launcher.values.host import Host
from launcher.values.job import BatchSize, Job
from launcher.values.model import Model, read_model
from launcher.values.plan import Plan
from launcher.values.precision import Platform
from launcher.values.profile import Profile

QWEN_05B = {
    "architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16", "hidden_size": 896, "intermediate_size": 4864,
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "vocab_size": 151936,
}  # fmt: skip
LLAMA_7B = {
    "torch_dtype": "float16", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
NEW_MAC = Platform(torch="2.13.0", macos="15.1", apple_chip="Apple M4 Pro")


def rungs(name, method="lora", asked="auto", **more):
    """The rungs as words: mode, base, what is trained, and whether there is a scaler."""
    return [
        (one.mode, one.base_dtype, one.trainable_dtype, one.scaler, one.tf32)
        for one in ladder(LadderInputs(profile(name), method, **more), asked).rungs
    ]


BF16 = ("bf16", "bfloat16", "float32", False, True)
BF16_FULL = ("bf16", "float32", "float32", False, True)
LEAN = ("fp16", "float16", "float32", True, False)
WIDE = ("fp16", "float32", "float32", True, False)
TF32 = ("fp32", "float32", "float32", False, True)
FP32 = ("fp32", "float32", "float32", False, False)


@pytest.mark.parametrize("name", ["a100_40gb", "a100_80gb", "l40s", "h100", "h200"])
def test_from_8_0_on_it_is_bf16_then_tf32_then_fp32(name):
    """A half base under adapters; weights that are trained stay fp32."""
    assert rungs(name) == [BF16, TF32, FP32]
    assert rungs(name, "full") == [BF16_FULL, TF32, FP32]


@pytest.mark.parametrize(
    ("name", "compute"),
    [("l40s", ["bf16", "fp32", "fp32"]), ("titan_rtx", ["fp16", "fp16", "fp32"]), ("p100", ["fp32"]), ("cpu", ["fp32"])],
)  # fmt: skip
def test_a_base_in_4_bits_computes_as_the_card_would_without(name, compute):
    """The rungs of a LoRA, each over nf4, with float32 adapters."""
    found = ladder(LadderInputs(profile(name), "qlora")).rungs
    assert [rung.mode for rung in found] == compute
    assert rungs(name, "qlora") == rungs(name, "lora")
    assert {(rung.quantization, rung.trainable_dtype) for rung in found} == {("nf4", "float32")}


def test_an_apple_gpu_computes_4_bits_where_bitsandbytes_does():
    """Its MPS kernels are tried with macOS 14 and torch 2.9; elsewhere the mend is a LoRA."""
    assert [rung.title for rung in ladder(LadderInputs(profile("mps"), "qlora", platform=NEW_MAC)).rungs] == [
        "bf16 autocast, nf4 base, fp32 adapters",
        "fp32, nf4 base, fp32 adapters",
    ]
    with pytest.raises(RefusedError, match=r"needs macOS 14 and torch 2\.9[^\n]*\n  --set method=lora"):
        ladder(LadderInputs(profile("mps"), "qlora"))


@pytest.mark.parametrize("name", ["titan_rtx", "t4", "t4x2"])
def test_on_turing_it_is_fp16_with_a_scaler(name):
    """Over a half base, over a wide one, then none."""
    assert rungs(name) == [LEAN, WIDE, FP32]
    assert rungs(name, "full") == [WIDE, FP32]


def test_a_model_born_in_bf16_begins_over_a_wide_base():
    """Its residuals may pass 65504; where only a half base fits, that is all there is, and the guard watches it."""
    assert rungs("titan_rtx", model=read_model(QWEN_05B)) == [WIDE, FP32]
    born = next(
        one
        for one in ladder(LadderInputs(profile("titan_rtx"), "lora", read_model(QWEN_05B))).excluded
        if one.base_dtype == "float16"
    )
    assert "saved in bf16" in born.why
    large = read_model({**LLAMA_7B, "torch_dtype": "bfloat16"})
    assert rungs("titan_rtx", model=large) == [LEAN]


def test_a_model_that_barely_does_not_fit_gets_the_leanest_of_the_usual_rungs():
    """Seven billion parameters on 24 GB."""
    shape = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
             "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 152064, "dtype": "bfloat16"}  # fmt: skip
    large = read_model(shape)
    assert large.parameters == pytest.approx(7.6e9, rel=0.03)
    assert rungs("titan_rtx", model=large) == [LEAN]
    quantized = read_model({**shape, "quantization_config": {"load_in_4bit": True}})
    assert rungs("titan_rtx", model=quantized)[0] == WIDE
    one = plan(
        profile("p100"),
        Host(name="h", address="h"),
        Job(name="x", command=("a",), method="lora"),
        model=large,
    )
    (found,) = check(one, None)
    assert (found.level, found.code) == ("note", "model-too-large")  # a script may load it in fewer bits


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        ({"num_experts": 128, "moe_intermediate_size": 768, "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
          "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "vocab_size": 151936,
          "tie_word_embeddings": False}, 30.5),
        ({"model_type": "gpt_neox", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
          "num_hidden_layers": 32, "vocab_size": 50432, "tie_word_embeddings": False}, 6.9),
        ({"hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8, "num_key_value_heads": 1,
          "head_dim": 256, "num_hidden_layers": 18, "vocab_size": 256000}, 2.5),
    ],
    ids=["experts", "no gate", "tied by default"],
)  # fmt: skip
def test_sizes_of_other_families_are_told_to_a_tenth(config, billions):
    """Experts, MLPs without a gate, and embeddings that are shared unless the config says otherwise."""
    assert read_model(config).billions == pytest.approx(billions, rel=0.1)


def test_a_p100_trains_in_fp32_where_that_fits():
    """No tensor cores: fp16 saves memory there, not time. Its form is Turing's: without a scaler gradients are lost."""
    assert rungs("p100", model=read_model(QWEN_05B)) == [FP32]
    assert rungs("p100", model=read_model({**LLAMA_7B, "num_hidden_layers": 20})) == [LEAN]
    assert rungs("p100") == [FP32]
    assert rungs("p100", "full") == [FP32]
    assert rungs("p100", asked="fp16") == [LEAN, WIDE, FP32]
    assert rungs("p100", asked="fp16", model=read_model(QWEN_05B)) == [WIDE, FP32]


@pytest.mark.parametrize("name", ["p100", "titan_rtx"])
def test_a_model_born_in_bf16_that_fits_in_halves_alone_is_warned_about(name):
    """Its rung says that it may overflow; one that was saved in fp16 has been trained in that range."""
    layers = {"p100": 20, "titan_rtx": 32}[name]
    for dtype, is_warned in (("bfloat16", True), ("float16", False)):
        model = read_model({**LLAMA_7B, "num_hidden_layers": layers, "torch_dtype": dtype})
        (rung,) = ladder(LadderInputs(profile(name), "lora", model)).rungs
        assert ("saved in bf16: it may have residuals beyond 65504" in rung.why) == is_warned


def test_an_apple_gpu_gets_bf16_where_macos_torch_and_chip_allow():
    """Else fp32."""
    new = ("bf16", "bfloat16", "float32", False, False)
    assert rungs("mps", platform=NEW_MAC) == [new, FP32]
    for worse in (
        {"torch": "2.5.0"},
        {"macos": "13.6"},
        {"apple_chip": "Apple M2 Max"},
        {"apple_chip": None},
        {"torch": None},
    ):
        assert rungs("mps", platform=NEW_MAC.model_copy(update=worse)) == [FP32]
    old_chip = NEW_MAC.model_copy(update={"apple_chip": "Apple M1"})
    assert rungs("mps", asked="bf16", platform=old_chip) == [new, FP32]


def test_a_cpu_trains_in_fp32():
    """bf16 on request, where the processor has it."""
    assert rungs("cpu") == [FP32]
    assert rungs("cpu", asked="bf16", platform=Platform(has_cpu_bf16=True))[0][0] == "bf16"


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("titan_rtx", "fp32", [FP32]),
        ("a100_40gb", "fp16", [LEAN, WIDE, BF16, TF32, FP32]),
        ("a100_40gb", "fp32", [TF32, FP32]),
        ("p100", "fp16", [LEAN, WIDE, FP32]),
    ],
)
def test_what_is_asked_for_is_followed_by_what_is_safer(name, asked, expected):
    """A request begins the ladder; it does not take its end away."""
    got = rungs(name, asked=asked)
    assert got[0] == expected[0]
    assert sorted(got) == sorted(expected)


def test_a_plan_and_a_request_of_float16_weights_from_before_are_read():
    """A run that has one is shown, and its request is refused with the reason rather than forgotten."""
    made = plan(profile("titan_rtx"), Host(name="h", address="h"), Job(name="x", command=("a",)))
    rung = {"mode": "fp16-native", "device": "cuda", "capability": "7.5", "base_dtype": "float16",
            "trainable_dtype": "float16", "adam_eps": 1e-4, "why": "as requested"}  # fmt: skip
    read = Plan.model_validate_json(json.dumps({**json.loads(made.to_json()), "ladder": [rung]}))
    assert read.ladder[0].title == "fp16-native"
    assert "float16-weights" in [finding.code for finding in check(read, None)]
    assert TypeAdapter(Request).validate_json('{"precision": "fp16-native"}').precision == "fp16-native"


@pytest.mark.parametrize("name", ["titan_rtx", "p100", "mps", "cpu"])
def test_float16_weights_are_refused_and_are_on_no_ladder(name):
    """Also for a request on record from before. No eps of Adam's is right for them; what to type instead is said."""
    with pytest.raises(
        RefusedError, match=r"up to 55 times too large.*no eps fixes that\n.*--precision auto"
    ):
        rungs(name, asked="fp16-native")


@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        ("titan_rtx", "bf16", r"capability 7\.5 < 8\.0 emulates it"),
        ("p100", "bf16", r"capability 6\.0 < 8\.0 emulates it"),
        ("cpu", "fp16", "accelerate silently disables fp16 on a CPU"),
        ("cpu", "bf16", "not known to compute bf16"),
        ("mps", "bf16", "needs macOS 14"),
    ],
)
def test_what_is_excluded_is_refused_with_reason_and_mend(name, asked, why):
    """The message holds the capability, not only a no."""
    with pytest.raises(RefusedError, match=f"{asked} is excluded on .*{why}.*\n.*--precision auto"):
        rungs(name, asked=asked)


def test_bf16_weights_of_a_lora_name_the_method_that_has_them():
    """A card that could is not the reason."""
    with pytest.raises(RefusedError, match="the method is lora: --set method=full"):
        rungs("rtx_4090_24gb", asked="bf16-weights")


def test_flash_attention_on_turing_is_refused_with_the_mend():
    """Else it fails in the first forward pass, after everything was loaded."""
    with pytest.raises(RefusedError, match=r"capability 7\.5; sdpa runs everywhere\n.*--set attention=sdpa"):
        rungs("titan_rtx", attention="flash_attention_2")
    assert rungs("l40s", attention="flash_attention_2") == [BF16]


def test_every_ladder_says_of_each_mode_why_it_is_or_is_not():
    """Nothing is left out in silence."""
    for one in profiles().values():
        for method in ("lora", "full"):
            found = ladder(LadderInputs(one, method))
            told = {rung.mode for rung in found.rungs} | {no.mode for no in found.excluded}
            more = {"bf16-weights"} if method == "full" and one.has_bf16 else set()
            assert told == {"fp32", "bf16", "fp16"} | more, one.name
            assert all(rung.why for rung in found.rungs)
            assert all(no.why for no in found.excluded)


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
@pytest.mark.parametrize("name", sorted(profiles()))
@pytest.mark.parametrize("layers", [4, 32, 1000])
def test_nothing_is_both_a_rung_and_excluded(name, method, layers):
    """Where nothing fits, the leanest rung says so, and names the share of the card that a plan uses."""
    model = read_model({**LLAMA_7B, "num_hidden_layers": layers})
    found = ladder(LadderInputs(profile(name), method, model, NEW_MAC))
    listed = {(rung.mode, rung.base_dtype) for rung in found.rungs}
    assert not listed & {(no.mode, no.base_dtype) for no in found.excluded}
    assert len(set(found.excluded)) == len(found.excluded)
    is_too_large = layers == 1000 and profile(name).kind == "cuda"
    says_so = "nothing fits; this is the leanest: it needs about" in found.rungs[0].why
    assert says_so or not is_too_large
    assert not says_so or (len(found.rungs) == 1 and "; a plan uses " in found.rungs[0].why)


def test_the_shape_of_a_model_tells_its_size():
    """Known sizes, by their configs; nested and torn ones."""
    assert read_model(QWEN_05B).parameters == pytest.approx(494e6, rel=0.03)
    assert read_model(LLAMA_7B).parameters == pytest.approx(6.74e9, rel=0.03)
    nested = read_model(
        {"model_type": "gemma3", "dtype": "bfloat16", "text_config": {**LLAMA_7B, "torch_dtype": None}}
    )
    assert (nested.dtype, nested.head_dim) == ("bfloat16", 128)
    for nothing in (
        None,
        {},
        {"hidden_size": "big"},
        {**QWEN_05B, "hidden_size": 0},
        {**QWEN_05B, "vocab_size": 10**30},
    ):
        assert read_model(nothing) is None


def split_of(name, model=None, method="lora", size=64, **more):
    one = profile(name)
    return split(
        one,
        BatchSize(global_size=size, **more),
        model,
        method,
        ladder(LadderInputs(one, method, model)).rungs[0],
        Workload(),
    )


def test_the_global_batch_does_not_depend_on_the_card():
    """64 is 64 on a P100 and on an A100; the micro-batch follows the memory, and the cards share."""
    for model in (None, read_model(QWEN_05B), read_model(LLAMA_7B)):
        splits = {name: split_of(name, model) for name in profiles()}
        assert {one.ranks * one.micro_batch * one.accumulation for one in splits.values()} == {64}
        assert splits["p100"].micro_batch < splits["a100_80gb"].micro_batch
        assert splits["t4x2"].ranks == 2
    assert split_of("titan_rtx").micro_batch == 8
    assert split_of("a100_80gb", micro=4).micro_batch == 4
    with pytest.raises(RefusedError, match=r"63 does not divide among 2 cards(.|\n)*batch.global=62"):
        split_of("t4x2", size=63)


def test_a_larger_model_gets_a_smaller_micro_batch():
    """And one that is trained in full a smaller one than one under adapters."""
    small, large = read_model(QWEN_05B), read_model(LLAMA_7B)
    assert split_of("a100_80gb", large).micro_batch < split_of("a100_80gb", small).micro_batch
    assert split_of("t4", small, "full").micro_batch < split_of("t4", small).micro_batch


def test_a_model_that_no_rung_fits_is_refused_by_the_gate_with_the_mend():
    """The plan is made all the same: a dry run shows it."""
    job = Job(name="x", command=("a",), model="org/model", method="full")
    one = plan(profile("titan_rtx"), Host(name="there", address="there"), job, model=read_model(LLAMA_7B))
    (found,) = check(one, None)
    assert (found.level, found.code) == ("refuse", "model-too-large")
    assert "method=lora" in found.mend
    (found,) = check(one.model_copy(update={"takes": ()}), None)
    assert found.level == "note", "a script that decides its own precision may load it in fewer bits"


CARDS = st.builds(
    lambda major, minor, memory, count: Profile(
        name="x", title="X", kind="cuda", capability=f"{major}.{minor}", memory_gb=memory, count=count
    ),
    st.integers(5, 12), st.integers(0, 9), st.floats(2, 200), st.integers(1, 8),
) | st.sampled_from([profile("mps"), profile("cpu")])  # fmt: skip
MODELS = st.none() | st.builds(
    Model,
    dtype=st.sampled_from([None, "float32", "float16", "bfloat16"]),
    parameters=st.floats(6, 12).map(lambda exponent: int(10**exponent)),
    layers=st.integers(1, 200),
    hidden_size=st.integers(1, 20000),
    head_dim=st.integers(1, 256),
    vocab_size=st.integers(1, 300000),
)
VERSIONS = st.none() | st.builds("{}.{}".format, st.integers(1, 20), st.integers(0, 20))
PLATFORMS = st.builds(
    Platform, torch=VERSIONS, macos=VERSIONS, has_cpu_bf16=st.booleans(),
    apple_chip=st.sampled_from([None, "Apple M1 Pro", "Apple M2", "Apple M3 Max", "Apple M5"]),
)  # fmt: skip


def outcome(call, *args, **more):
    """What a call returns, or the words with which it refuses."""
    try:
        return call(*args, **more), None
    except RefusedError as error:
        return None, str(error)


def crashes(one, card):
    """What would go wrong with a precision on a card, by the facts alone: written without a look at the validator."""
    dtypes = {one.base_dtype, one.trainable_dtype, one.autocast_dtype}
    compute = tuple(map(int, card.capability.split("."))) if card.capability else (0, 0)
    if one.scaler and one.trainable_dtype != "float32":
        yield "unscale"
    if one.autocast_dtype == "float16" and not one.scaler:
        yield "underflow"
    if one.trainable_dtype == "float16" and (one.adam_eps < 1e-5 or one.autocast_dtype):
        yield "eps"
    if one.trainable_dtype == "bfloat16":
        yield "rounding"
    if card.kind == "cuda" and compute < (8, 0) and ("bfloat16" in dtypes or one.tf32):
        yield "emulation"
    if card.kind == "cpu" and ("float16" in dtypes or one.scaler or one.tf32):
        yield "silence"
    if one.attention == "flash_attention_2" and (compute < (8, 0) or dtypes == {"float32", None}):
        yield "kernel"
    if one.compile and ((card.kind == "cuda" and compute < (7, 0)) or card.kind == "mps"):
        yield "triton"
    if one.device != card.kind:
        yield "device"


@given(
    CARDS,
    MODELS,
    st.sampled_from(["lora", "qlora", "full"]),
    st.sampled_from(["auto", "bf16", "fp16", "fp16-native", "fp32"]),
    PLATFORMS,
    st.sampled_from(["sdpa", "eager", "flash_attention_2"]),
    st.booleans(),
    st.integers(1, 512),
)
def test_no_card_model_job_and_request_yield_what_would_crash(
    card, model, method, asked, platform, attention, compiles, size
):
    """Whatever is reached holds together, and every refusal names the mend."""
    job = Job(
        name="x",
        command=("a",),
        method=method,
        attention=attention,
        compile=compiles,
        batch=BatchSize(global_size=size),
    )
    one, refused = outcome(
        plan, card, Host(name="h", address="h"), job, asked, model=model, platform=platform
    )
    if refused is not None:
        assert re.search(r"\n .* --(precision auto|set (attention|compile|batch|method)\b)", refused), refused
        return
    for rung in one.ladder:
        assert list(crashes(rung, card)) == []
        assert (rung.quantization is not None) == (method == "qlora")
        if card.kind == "mps" and "bfloat16" in (rung.base_dtype, rung.autocast_dtype):
            assert platform.has_macos(14)
            assert platform.has_torch(2, 6)
        if card.kind == "mps" and rung.scaler:
            assert platform.has_torch(2, 8)
    assert one.ladder[0].mode == asked or asked == "auto"
    assert one.split.global_batch == size == one.split.ranks * one.split.micro_batch * one.split.accumulation
