"""The worker makes torch, transformers, accelerate and peft do what the plan's precision says."""

import copy
import os
import pickle

import pytest

pytestmark = pytest.mark.training

SENTENCES = {
    "fp32": "precision fp32: no autocast over an fp32 base, fp32 trainables, scaler off   (a test)",
    "bf16": "precision bf16: bf16 autocast over a bf16 base, fp32 trainables, scaler off   (a test)",
    "fp16": (
        "precision fp16, rehearsed on the CPU: fp16 autocast over an fp16 base, fp32 trainables, scaler on"
        "   (a test)"
    ),
    "fp16-native": (
        "precision fp16-native, rehearsed on the CPU: no autocast over an fp16 base, fp16 trainables, scaler off"
        "   (a test)"
    ),
}


@pytest.mark.parametrize("mode", SENTENCES)
def test_a_start_says_its_precision_once(worker, run_of, capsys, mode, monkeypatch):
    """Mode, how, scaler and why, in one line, when the precision is first used."""
    run_of(mode)
    for _ in range(2):
        worker.knobs().precision  # noqa: B018  # read for its effect
    assert capsys.readouterr().out == SENTENCES[mode] + "\n"


def test_other_ranks_say_nothing(worker, run_of, capsys, monkeypatch):
    """One line a start, not one a card."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run_of("fp16")
    worker.knobs().precision  # noqa: B018  # read for its effect
    assert capsys.readouterr().out == ""


def test_an_older_agent_leaves_the_new_fields_at_plain_values(worker, run):
    """An attempt.json without them is read all the same."""
    precision = worker.knobs().peek.precision
    assert (precision.capability, precision.attention, precision.compile) == (None, "sdpa", False)
    assert worker.knobs().rehearsed is False


def test_the_model_is_loaded_as_planned(torch, worker, run_of, agent, llama, tmp_path):
    """The keywords are from_pretrained's, and count as consuming the precision."""
    run_of("fp16")
    llama().save_pretrained(tmp_path / "base")
    from transformers import AutoModelForCausalLM

    keywords = worker.model_arguments()
    assert keywords == {"dtype": torch.float16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "base", **keywords).dtype == torch.float16
    assert agent.events(1)[0]["values"] == {"knobs": ["precision"]}


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_a_dtype_of_the_script_wins_and_consumes_nothing(torch, worker, run_of, agent, name):
    """A script that hard-codes its dtype is not mended by another rung."""
    run_of("fp16")
    keywords = worker.model_arguments(**{name: torch.float32, "revision": "main"})
    assert keywords == {name: torch.float32, "revision": "main"}
    worker.done(1)
    assert agent.events(1)[0]["kind"] == "done"


def test_a_rehearsal_has_no_kernels_of_a_card(torch, worker, run_of):
    """Flash attention, compilation and tf32 are the card's; dtypes and flags stay."""
    run_of("bf16", {"device": "cuda", "attention": "flash_attention_2", "compile": True, "tf32": True})
    keywords = worker.training_arguments()
    assert "attn_implementation" not in worker.model_arguments()
    assert (keywords["use_cpu"], keywords["bf16"]) == (True, True)
    assert not {"torch_compile", "tf32"} & keywords.keys()
    model = object()
    assert worker.compiled(model) is model
    assert worker.accelerator().state.dynamo_plugin.backend == "NO"


def test_on_its_card_the_plan_is_handed_on_whole(worker, run_of, monkeypatch):
    """What a rehearsal leaves out is there without it."""
    monkeypatch.setattr(worker.precision.compiled_models, "_missing", lambda _device: iter(()))
    changes = {"device": "cuda", "attention": "flash_attention_2", "compile": True, "tf32": True}
    run_of("bf16", changes, rehearsed=False)
    keywords = worker.training_arguments()
    assert worker.model_arguments()["attn_implementation"] == "flash_attention_2"
    assert (keywords["use_cpu"], keywords["torch_compile"], keywords["tf32"]) == (False, True, True)


def test_an_accelerator_compiles_what_it_prepares_and_a_model_beside_it_is_compiled_too(
    torch, worker, run_of
):
    """The parameters are those of the model that the script keeps and saves."""
    run_of("fp32", {"compile": True})
    accelerator = worker.accelerator()
    assert accelerator.state.dynamo_plugin.backend == "INDUCTOR"
    kept, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for model in (accelerator.prepare(kept), worker.compiled(other)):
        assert model.state_dict().keys() == {"_orig_mod.weight", "_orig_mod.bias"}
    assert kept.state_dict().keys() == other.state_dict().keys() == {"weight", "bias"}


@pytest.mark.parametrize(
    ("device", "variables", "named"),
    [
        ("cpu", {"CXX": "no-such-compiler"}, "a compiler (no-such-compiler)"),
        ("cuda", {"CC": "no-such-compiler"}, "a compiler (no-such-compiler)"),
        ("cuda", {"PATH": "/nowhere"}, "a compiler (gcc or clang)"),
        ("cpu", {}, "Python's headers (Python.h"),
    ],
)
def test_a_host_without_what_compiles_is_told_before_the_first_step(
    worker, run_of, monkeypatch, device, variables, named
):
    """Torch itself says so in a long traceback, at the first forward pass."""
    run_of("fp32", {"compile": True, "device": device, "capability": "8.0"}, rehearsed=False)
    monkeypatch.delenv("CC", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not variables:
        monkeypatch.setattr(
            worker.precision.compiled_models.sysconfig, "get_path", lambda *_names: "/nowhere"
        )
    for ask in (worker.training_arguments, worker.accelerator, lambda: worker.compiled(None)):
        with pytest.raises(SystemExit) as told:
            ask()
        assert str(told.value).startswith(f"compile = true needs {named}")
        assert str(told.value).endswith("--set compile=false")


@pytest.mark.parametrize(
    ("mode", "own", "flags"),
    [
        ("fp32", {}, (False, False, "no")),
        ("bf16", {}, (False, True, "bf16")),
        ("fp16", {}, (True, False, "fp16")),
        ("fp16-native", {}, (False, False, "no")),
        ("bf16", {"fp16": True}, (True, False, "fp16")),
        ("bf16", {"bf16": False}, (False, False, "no")),
    ],
)
def test_flags_and_environment_agree(torch, worker, run_of, mode, own, flags):
    """Never both flags; an Accelerator of the script's own gets what Trainer gets."""
    run_of(mode)
    keywords = worker.training_arguments(**own)
    assert (keywords["fp16"], keywords["bf16"], os.environ["ACCELERATE_MIXED_PRECISION"]) == flags
    from accelerate import Accelerator

    assert Accelerator(cpu=True).mixed_precision == flags[2]


class Probe:
    """Notes in the forward pass which autocast is on, and with which dtype a linear layer answers."""

    def __init__(self, torch, model):
        self.seen = set()

        def note(_module, _inputs, output):
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
            self.seen.add((dtype, output.dtype))

        model.get_submodule("lm_head").register_forward_hook(note)


def test_a_rehearsed_trainer_really_autocasts_and_scales(torch, worker, run_of, llama, train):
    """On a CPU accelerate switches fp16 off without a word; under a rehearsal it is on, scaler included."""
    run_of("fp16", {"base_dtype": "float32"})
    model = worker.prepare(llama())
    probe = Probe(torch, model)
    scaled = []
    model.lm_head.weight.register_hook(lambda gradient: scaled.append(gradient.norm().item()))
    trainer = train(model, max_steps=3)
    assert probe.seen == {(torch.float16, torch.float16)}
    assert trainer.accelerator.scaler.get_scale() == 65536
    assert min(scaled) > 1000  # some 1 without the scale


def test_a_rehearsed_accelerator_really_scales(torch, worker, run_of, llama, rows):
    """The same for a script's own loop, whose unscaled steps are those of fp32 within fp16's reach."""
    run_of("fp16", {"base_dtype": "float32"}, split={**SPLIT, "accumulation": 1})
    accelerator = worker.accelerator()
    model = worker.prepare(llama())
    probe = Probe(torch, model)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(input_ids=rows[0]["input_ids"][None], labels=rows[0]["labels"][None]).loss)
    assert model.lm_head.weight.grad.norm() > 1000
    optimizer.step()
    assert not optimizer.step_was_skipped
    assert probe.seen == {(torch.float16, torch.float16)}


SPLIT = {"global_batch": 4, "ranks": 1, "micro_batch": 4, "accumulation": 1}


@pytest.mark.parametrize(
    ("mode", "autocast", "scales"),
    [("fp32", None, 1), ("bf16", "bfloat16", 1), ("fp16", "float16", 65536), ("fp16-native", None, 1)],
)
def test_the_pair_for_plain_torch_follows_the_plan(torch, worker, run_of, agent, mode, autocast, scales):
    """A context manager and a scaler, each of which may do nothing; using them consumes the precision."""
    run_of(mode)
    with worker.autocast():
        output = torch.nn.Linear(2, 2)(torch.ones(1, 2))
    assert output.dtype == getattr(torch, autocast or "float32")
    scaler = worker.scaler()
    assert scaler.is_enabled() == (scales > 1)
    assert scaler.scale(torch.ones(())) == scales
    assert agent.events(1)[0]["values"] == {"knobs": ["precision"]}


def dtypes(model, is_trainable=True):
    """Give the dtypes of what is trainable, or of what is not."""
    return {one.dtype for one in model.parameters() if one.requires_grad == is_trainable}


@pytest.mark.parametrize(
    "own",
    [
        {"modules_to_save": ["lm_head", "norm"]},
        {"modules_to_save": ["embed_tokens"]},
        {"bias": "all", "target_modules": ["q_proj"]},
    ],
    ids=["head and norm", "embeddings", "biases"],
)
def test_what_peft_leaves_half_is_upcast_and_trains(torch, worker, run_of, llama, lora, train, own):
    """The scaler would refuse to unscale fp16 gradients of these."""
    run_of("fp16")
    model = lora(llama("float16", attention_bias=True), **own)
    assert torch.float16 in dtypes(model)  # the trap is there
    worker.prepare(model)
    assert (dtypes(model), dtypes(model, is_trainable=False)) == ({torch.float32}, {torch.float16})
    assert train(model, max_steps=3).state.global_step == 3


def test_a_new_classification_head_is_upcast_and_trains(torch, worker, run_of, lora, train, llama):
    """peft thaws it although the script names no modules_to_save."""
    from transformers import LlamaForSequenceClassification

    run_of("fp16")
    config = copy.deepcopy(llama().config)
    config.pad_token_id, config.num_labels = 0, 2
    model = lora(LlamaForSequenceClassification(config).half(), task_type="SEQ_CLS")
    assert torch.float16 in dtypes(model)  # the trap is there
    worker.prepare(model)
    assert dtypes(model) == {torch.float32}
    trainer = train(model, max_steps=3, trainer=classifying())
    assert trainer.state.global_step == 3


def classifying():
    """Give a Trainer whose labels are classes."""
    from transformers import Trainer

    class Classifying(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            inputs["labels"] = inputs["labels"][:, 0] % 2
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Classifying


def test_fp16_native_trains_in_half(torch, worker, run_of, llama, lora, train):
    """Adapters too, with an eps that half precision can hold."""
    run_of("fp16-native")
    model = worker.prepare(lora(llama("float16")))
    assert dtypes(model) == {torch.float16}
    trainer = train(model, max_steps=3)
    assert trainer.accelerator.scaler is None
    assert trainer.optimizer.param_groups[0]["eps"] == 1e-4


def test_a_base_of_another_half_is_refused_by_name(torch, worker, run_of, llama, lora):
    """The message names the tensor, both dtypes, and the mend."""
    run_of("fp16")
    model = lora(llama("bfloat16"))
    with pytest.raises(
        RuntimeError, match=r"embed_tokens\.weight is torch\.bfloat16, .* torch\.float16"
    ) as refused:
        worker.prepare(model)
    assert "from_pretrained(..., **worker.model_arguments())" in str(refused.value)


def test_a_base_of_fp32_is_said_and_trained(torch, worker, run_of, llama, lora, capsys):
    """It is safe and costs memory; integers are quantized weights and no matter."""
    run_of("fp16")
    model = lora(llama())
    model.register_parameter(
        "packed", torch.nn.Parameter(torch.ones(2, dtype=torch.uint8), requires_grad=False)
    )
    worker.prepare(model)
    start, line = capsys.readouterr().out.splitlines()
    assert start.startswith("precision fp16")
    assert "are wider than the plan's torch.float16" in line
    assert "worker.model_arguments()" in line


def test_by_hand_any_base_is_taken(worker, llama, lora):
    """Outside a run there is no plan to compare it with."""
    worker.prepare(lora(llama("bfloat16")))


CASTS = {
    "half": lambda model, _torch: model.half(),
    "bfloat16": lambda model, _torch: model.bfloat16(),
    "double": lambda model, _torch: model.double(),
    "float": lambda model, _torch: model.float(),
    "to": lambda model, torch: model.to(torch.bfloat16),
    "to device and dtype": lambda model, torch: model.to("cpu", dtype=torch.float16),
    "in a wrapper": lambda model, torch: torch.nn.Sequential(model).half(),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_of_the_live_model_is_refused(torch, worker, run_of, llama, lora, name):
    """It says why and what to do instead, and nothing has changed."""
    run_of("fp16")
    model = worker.prepare(lora(llama("float16")))
    with pytest.raises(RuntimeError, match=r"copy\.deepcopy\(model\)\.to"):
        CASTS[name](model, torch)
    assert (dtypes(model), dtypes(model, is_trainable=False)) == ({torch.float32}, {torch.float16})


def test_moves_and_copies_stay_free(torch, worker, run_of, llama):
    """A move to another device is not a cast, a copy is not the live model, and both can be saved."""
    run_of("fp32")
    model = worker.prepare(llama())
    assert model.to("cpu") is model
    assert model.to(torch.float32) is model
    assert copy.deepcopy(model).to(torch.bfloat16).dtype == torch.bfloat16
    assert pickle.loads(pickle.dumps(model)).half().dtype == torch.float16  # noqa: S301  # our own bytes


def test_evaluating_in_bf16_after_training_is_refused(worker, run_of, llama, train, rows):
    """Trainer would cast the live model behind everybody's back, and the next step would end in Adam."""
    run_of("fp32")
    trainer = train(worker.prepare(llama()), max_steps=2, bf16_full_eval=True)
    with pytest.raises(RuntimeError, match="bf16_full_eval"):
        trainer.evaluate(rows[:4])


def test_a_cast_behind_our_back_is_reported_at_the_next_step(torch, worker, run_of, llama, rows):
    """A part of the model that was cast is found before the optimizer meets it."""
    run_of("fp32")
    model = worker.prepare(llama())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    model(input_ids=rows[0]["input_ids"][None], labels=rows[0]["labels"][None]).loss.backward()
    optimizer.step()
    model.lm_head.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"copy\.deepcopy\(model\)\.to"):
        optimizer.step()


@pytest.mark.parametrize(
    ("capability", "repeats"), [("7.5", True), ("6.0", True), ("8.0", False), ("10.0", False)]
)
def test_grouped_heads_are_repeated_below_capability_8(
    torch, worker, run_of, llama, capability, repeats, rows
):
    """There torch would take the math kernel, whose memory is quadratic in the length."""
    run_of("fp16", {"capability": capability})
    model = worker.prepare(llama("float16"))
    grouped = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def note(*args, **kwargs):
        grouped.append(kwargs.get("enable_gqa", False))
        return attend(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", note)
        model(input_ids=rows[0]["input_ids"][None])
    assert set(grouped) == {not repeats}


STORED = {"autocast_dtype": None, "scaler": False}
"""A P100's second choice: a half base that is only stored as such."""


@pytest.mark.parametrize(
    "own", [{"modules_to_save": ["lm_head"]}, {"modules_to_save": ["norm"]}, {"bias": "all"}]
)
def test_upcast_parts_stand_among_half_ones_without_autocast(torch, worker, run_of, llama, lora, train, own):
    """Nothing brings their dtypes together there but the worker; an evaluation outside of autocast is like it."""
    run_of("fp16", STORED)
    model = worker.prepare(lora(llama("float16", attention_bias=True), **own))
    assert dtypes(model) == {torch.float32}
    assert train(model, max_steps=3).state.global_step == 3
    run_of("fp16")
    model = worker.prepare(lora(llama("float16", attention_bias=True), **own)).eval()
    assert model(input_ids=torch.arange(2, 8)[None]).logits.isfinite().all()


def test_once_a_run_is_done_its_model_may_be_cast(torch, worker, run_of, llama):
    """What is trained no more is nobody's state."""
    run_of("fp32")
    model = worker.prepare(llama())
    with pytest.raises(RuntimeError, match="deepcopy"):
        model.half()
    worker.done(1)
    assert dtypes(model.half()) == {torch.float16}


def test_an_eps_that_is_zero_in_fp16_is_refused_before_the_first_step(torch, worker, run_of, llama, rows):
    """Adam would divide by it."""
    run_of("fp16-native")
    model = worker.prepare(llama("float16"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(input_ids=torch.arange(2, 8)[None], labels=torch.arange(2, 8)[None]).loss.backward()
    with pytest.raises(
        RuntimeError, match=r"eps 1e-08 is below the smallest normal number of float16.*train float32 weights"
    ):
        optimizer.step()


def test_a_knob_that_the_script_sets_itself_is_held(worker, run_of, agent):
    """Another rung would change nothing of it, although the model was loaded as planned."""
    run_of("bf16")
    worker.model_arguments()
    worker.training_arguments(bf16=True)
    consumed = [event["values"] for event in agent.events(3)]
    assert consumed[0] == {"knobs": ["precision"]}
    assert {"knobs": [], "held": ["precision"]} in consumed
