"""The fine-tuning program: its pieces, and a training of a few steps on a tiny random model."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbed.job_programs import ROOT, WORKER, load

# Looked for, not imported: that takes eight seconds, also where no training is selected.
if not all(map(importlib.util.find_spec, ("torch", "transformers", "accelerate", "peft"))):
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def sft():
    return load("sft")


@pytest.fixture(scope="module")
def shared():
    return load("shared")


@pytest.fixture(scope="module")
def demo():
    return load("demo")


@pytest.fixture(scope="module")
def tokenizer(demo):
    return demo.tokenizer()


@pytest.fixture(scope="module")
def scoring():
    return load("scoring")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 37000 </answer>", "37000"),
        ("so it is <answer>a\nb</answer>.", "a\nb"),
        ("37000", None),
        ("<answer>37000", None),
        ("<answer>1</answer><answer>2</answer>", None),
        ("<answer><answer>1</answer>", None),
    ],
)
def test_an_answer_is_one_well_formed_pair_of_tags(scoring, text, answer):
    """Anything but exactly one pair of tags is no answer."""
    assert scoring.read_answer(text) == answer


@pytest.mark.parametrize(
    ("kind", "attention"),
    [(kind, attention) for kind in ("llama", "mistral", "opt") for attention in ("sdpa", "eager")]
    + [("bloom", "eager")],
)
def test_an_example_has_the_same_logits_in_a_padded_batch_and_alone(shared, kind, attention):
    """Without a mask: causal attention does not look to the right, in windows, by distances or by learned positions."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, masking_utils

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {
        "mistral": {"sliding_window": 3, "num_key_value_heads": 2},
        "bloom": {"n_layer": 2, "n_head": 4},
        "opt": {"ffn_dim": 32, "word_embed_proj_dim": 32},
    }
    config = AutoConfig.for_model(kind, vocab_size=30, pad_token_id=1, **sizes, **own.get(kind, {}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    rows = [{"input_ids": [*range(3, 3 + length)], "labels": [*range(3, 3 + length)]} for length in (4, 9, 6)]
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(
            masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices
        )
        alone = [model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
        shared.expect_one_example_a_row()
        batch = shared.collate(rows, pad_id=1)
        assert batch.keys() == {"input_ids", "labels"}
        together = model(input_ids=batch["input_ids"]).logits
    for logits, padded in zip(alone, together, strict=True):
        torch.testing.assert_close(padded[: len(logits)], logits, rtol=1e-4, atol=1e-5)


def test_the_tokens_of_a_step_are_those_of_its_examples(shared):
    """In a second epoch too, and where the first examples complete the last step."""
    rows = [*range(1, 11)]
    sampler = shared.StepSampler(rows, 4, seed=3)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        lengths = [rows[place] for place in sampler]
        found = [sampler.tokens_of(3 * epoch + step) for step in (1, 2, 3)]
        assert found == [sum(lengths[start : start + 4]) for start in (0, 4, 8)]


def test_a_chat_template_writes_the_prompt(shared, tokenizer, demo):
    """A model with a chat template is asked in its own form, and learns the mark with which that ends a turn."""
    chatty = demo.tokenizer()
    chatty.chat_template = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}<unk>{% endfor %}{% if add_generation_prompt %}a {% endif %}"
    for tokens, asked, learnt in ((chatty, "u 1 km<unk>a ", "7<unk>"), (tokenizer, "1 km\n", "7<eos>")):
        row = shared.encode(tokens, {"prompt": "1 km", "completion": "7"})
        assert tokens.decode(row["input_ids"]) == asked + learnt
        assert tokens.decode([label for label in row["labels"] if label >= 0]) == learnt


def test_a_row_that_the_template_refuses_ends_the_job_with_its_reason(shared, demo):
    """Many templates take no system prompt, or only turns that alternate."""
    strict = demo.tokenizer()
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    said = "the job refuses: the chat template refuses a row: roles must alternate"
    with pytest.raises(SystemExit, match=said), shared.refusing():
        shared.encode(strict, {"prompt": "1 km", "completion": "7"})
    said = "the chat template refuses the row that begins '1 km': roles must alternate"
    with pytest.raises(SystemExit, match=said):
        shared.encode(strict, {"messages": [{"role": "user", "content": "1 km"}]})


def test_a_template_without_marks_names_what_to_set(shared, demo):
    """Of a chat it cannot be told which turns are the assistant's."""
    unmarked = demo.tokenizer()
    unmarked.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    row = {"messages": [{"role": "user", "content": "1 km"}, {"role": "assistant", "content": "7"}]}
    with pytest.raises(SystemExit, match="does not mark the assistant's turns"):
        shared.encode_chat(unmarked, row)
    with pytest.raises(SystemExit, match=r"settings\.loss_on=all"), shared.refused_by_trl():
        raise ValueError("The template has no {% generation %} marks")
    made = shared.encode_chat(unmarked, row, learns_all=True)
    assert made["labels"] == made["input_ids"]


def test_samples_of_evaluations_that_come_again_are_forgotten(scoring, tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4}')
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (0, 4, 6)))
    scoring.forget_samples(tmp_path, str(tmp_path / "checkpoint-4"))
    assert path.read_text() == '{"step": 0}\n{"step": 4}\n'
    scoring.forget_samples(tmp_path, None)
    assert path.read_text() == ""


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_an_adapter_on_tied_embeddings_is_not_merged():
    """The merge would change the head too."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    models = load("models")
    for is_tied in (True, False):
        base = LlamaForCausalLM(LlamaConfig(vocab_size=64, tie_word_embeddings=is_tied, **sizes))
        model = get_peft_model(base, LoraConfig(target_modules=["embed_tokens"]))
        models.check_adapter(model, "embed_tokens", merge=False)
        if is_tied:
            with pytest.raises(SystemExit, match="the embeddings are tied to the head"):
                models.check_adapter(model, "embed_tokens", merge=True)
        else:
            models.check_adapter(model, "embed_tokens", merge=True)


def test_an_answer_ends_with_the_mark_with_which_the_turns_end(scoring, tokenizer):
    """Where the template ends a turn by another one than the tokenizer's; a newline may come after it."""
    end, other = tokenizer.eos_token_id, tokenizer.bos_token_id or tokenizer.pad_token_id
    row = {"input_ids": [7, 8, other, 9], "labels": [-100, 8, other, 9]}
    assert scoring.Held([], [row]).stops(tokenizer) == [end, other]
    assert scoring.Held([], [{"input_ids": [7, end], "labels": [7, end]}]).stops(tokenizer) == [end]


def test_examples_too_long_are_left_out_and_counted(shared, capsys):
    """A cut example would teach to stop in the middle."""
    rows = [{"input_ids": [0] * length, "labels": [0] * length} for length in (30, 60)]
    assert shared.keep_short(rows, max_length=40) == rows[:1]
    assert "left out 1 of 2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="max_length"):
        shared.keep_short(rows, max_length=3)


def test_a_step_has_the_same_examples_on_any_card_and_those_of_a_micro_batch_are_alike(shared):
    """Each epoch has its own order, in which only the examples of one step are sorted."""
    rows = [number * 7 % 23 + 1 for number in range(40)]
    sampler = shared.StepSampler(rows, 8, seed=1)
    drawn = shared.order_of(40, 1, 0)
    orders = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(40))
    for start in range(0, 40, 8):
        step = orders[0][start : start + 8]
        assert sorted(step) == sorted(drawn[start : start + 8])
        lengths = [rows[place] for place in step]
        assert lengths == sorted(lengths)
    assert orders[0] != orders[1]
    assert list(shared.StepSampler(rows, 8, seed=2)) != orders[0]


@pytest.mark.parametrize("batch", [16, 100])
def test_the_first_examples_of_an_epoch_complete_its_last_step(shared, batch):
    """Otherwise the number of ranks would decide which examples that step has."""
    rows = [5] * 40
    sampler = shared.StepSampler(rows, batch, seed=1)
    drawn = shared.order_of(40, 1, 0)
    assert list(sampler) == [*drawn, *drawn, *drawn][: len(sampler)]
    assert len(sampler) == {16: 48, 100: 100}[batch]


def test_the_demo_questions_are_distinct_right_and_the_same_each_time(demo):
    """What is held out was never trained on."""
    rows = demo.questions()
    assert rows == demo.questions()
    assert len(set(rows)) == len(rows)
    assert dict(rows)["168 kl in l?"] == "168000"


def test_the_demo_is_made_once_and_shared(demo, tmp_path, monkeypatch):
    """Of two that make it at once the first wins, the second uses it, and nothing else is left behind."""
    made = []

    def make(folder: Path) -> None:
        (folder / "model").mkdir()
        made.append(folder)
        if len(made) == 1:
            demo.ensure(str(tmp_path))  # another process, faster

    monkeypatch.setattr(demo, "make", make)
    parts = demo.ensure(str(tmp_path))
    assert demo.ensure(str(tmp_path)) == parts
    assert len(made) == 2
    assert os.listdir(tmp_path) == [Path(parts.model).parent.name]


@pytest.fixture
def tiny(demo, tmp_path):
    """Make a random model too small to learn, data, and the attempt.json of a run on them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = demo.tokenizer()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), **shape)).save_pretrained(tmp_path / "base")
    tokens.save_pretrained(tmp_path / "base")
    lines = [json.dumps({"prompt": f"{n} km in m?", "answer": n * 1000}) for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path


PRECISION = {
    "mode": "fp32", "device": "cpu", "base_dtype": "float32", "trainable_dtype": "float32", "autocast_dtype": None,
    "scaler": False, "tf32": False, "adam_eps": 1e-8, "why": "a processor",
}  # fmt: skip


def start(folder: Path, **changes) -> subprocess.Popen:
    """Start sft.py as an attempt below `folder`."""
    values = {
        "version": 1,
        "run": "1121-sft-ab12",
        "kind": "attempt",
        "attempt": 1,
        "precision": PRECISION,
        "split": {"global_batch": 4, "ranks": 1, "micro_batch": 2, "accumulation": 2},
        "steps": 4,
        "seed": 0,
        "loader_workers": 0,
        "save_every_steps": 2,
        "method": "lora",
        "model": str(folder / "base"),
        "data": {"train": str(folder / "rows.jsonl"), "eval": str(folder / "rows.jsonl")},
        "settings": {
            "logging_steps": 1,
            "eval_limit": 3,
            "max_new_tokens": 4,
            "answer_tags": True,
            "generate": "tags",
        },
        "folders": {
            name: str(folder / name) for name in ("run", "code", "artifacts", "checkpoints", "cache")
        },
        **changes,
    }
    (folder / "attempt.json").write_text(json.dumps(values))
    environment = {**os.environ, "PYTHONPATH": str(WORKER), "LAUNCH_ATTEMPT": str(folder)}
    environment.pop("LAUNCH_SOCKET", None)  # silent: the events are tested in test_worker.py
    return subprocess.Popen([sys.executable, str(ROOT / "jobs" / "sft.py")], env=environment)


@pytest.mark.long
def test_compiled_it_learns_the_same_and_its_files_are_those_of_any_training(tiny):
    """The losses and the names of the weights are those of the model as it was written, after a resume too."""
    from safetensors.torch import load_file

    found = {}
    for compiles in (False, True):
        precision = {**PRECISION, "compile": compiles}
        assert start(tiny, precision=precision).wait(300) == 0
        checkpoint = {"step": 2, "path": str(tiny / "checkpoints" / "checkpoint-2")}
        assert start(tiny, precision=precision, checkpoint=checkpoint).wait(300) == 0
        result = json.loads((tiny / "artifacts" / "result.json").read_text())
        weights = sorted(tiny.glob("**/adapter_model.safetensors"))
        assert len(weights) == 3  # of two checkpoints, and what came out
        found[compiles] = result, [[*load_file(path)] for path in weights]
        shutil.rmtree(tiny / "checkpoints")
        shutil.rmtree(tiny / "artifacts")
    assert found[True][1] == found[False][1]
    assert found[True][0] == pytest.approx(found[False][0], rel=1e-3)


@pytest.mark.long
def test_sigterm_leaves_a_checkpoint_from_which_the_next_start_goes_on(tiny):
    """A stop is exit 0 without a result; the resumed training ends at the planned step."""
    first = start(tiny, steps=100_000, save_every_steps=3)
    checkpoints = tiny / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("*/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    assert first.wait(120) == 0
    assert not (tiny / "artifacts" / "result.json").exists()
    saved = {path.parent.name: path.stat().st_mtime_ns for path in checkpoints.glob("*/manifest.json")}
    stopped_at = max(int(name.rpartition("-")[2]) for name in saved)

    checkpoint = {"step": stopped_at, "path": str(checkpoints / f"checkpoint-{stopped_at}")}
    steps = stopped_at + 2
    assert start(tiny, steps=steps, save_every_steps=None, checkpoint=checkpoint).wait(120) == 0
    assert json.loads((tiny / "artifacts" / "result.json").read_text())["steps"] == steps
    assert {
        path.parent.name: path.stat().st_mtime_ns for path in checkpoints.glob("*/manifest.json")
    } == saved
