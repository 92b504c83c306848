"""`sft` beside TRL itself: the same losses, rows that do not see each other, and a resume that changes nothing."""

import importlib.util
import json
import random
import shutil
import signal
from pathlib import Path

import pytest
from testbed.job_programs import begins, figures, load, noted, run_job, save_model

if importlib.util.find_spec("trl") is None:
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

STEPS, EVERY = 12, 3
SPLIT = {"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2}
NOTED = Path(__file__).with_name("noted.py")
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a {% generation %}{{ m.content }}<eos>{% endgeneration %}"
    "{% else %}{{ m.role[0] }} {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
BESIDE = """
import json, sys, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

model, rows, arguments = json.load(open("given.json"))
class InOrder(SFTTrainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)
set_seed(0)
tokenizer = AutoTokenizer.from_pretrained(model)
trainer = InOrder(
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
    SFTConfig("beside", use_cpu=True, report_to="none", save_strategy="no", logging_steps=1, seed=0, bf16=False,
              gradient_checkpointing=False, disable_tqdm=True, lr_scheduler_type="constant", **arguments),
    train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
)
trainer.remove_callback(PrinterCallback)
trainer.train()
print(json.dumps([line for line in trainer.state.log_history if "loss" in line]))
"""
SETTINGS = {
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "eval_share": 0.0,
    "scheduler": "constant",
    "warmup_steps": 0,
}


def chats(count):
    """Chats of one to three exchanges, of different lengths."""
    return [
        {"messages": [turn for n in range(1 + k % 3) for turn in (
            {"role": "user", "content": f"{k} km in m?" + " please" * (k % 4)},
            {"role": "assistant", "content": str(1000 * k + n)},
        )]}
        for k in range(count)
    ]  # fmt: skip


def pairs(count):
    return [
        {"prompt": f"{k} km in m?" + " please" * (k % 4), "completion": str(1000 * k)} for k in range(count)
    ]


def sft(
    python,
    folder,
    rows,
    *,
    ends_with=0,
    method="full",
    settings=(),
    is_told=False,
    split=SPLIT,
    layers=1,
    **more,
):
    """Train by sft.py in a folder; return what it printed, with its errors if it `is_told` of one."""
    from transformers import AutoTokenizer

    if not (folder / "base").exists():
        save_model(folder / "base", seed=0, layers=layers)
        tokenizer = AutoTokenizer.from_pretrained(folder / "base")
        tokenizer.chat_template = TEMPLATE if "messages" in rows[0] else None
        tokenizer.save_pretrained(folder / "base")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(NOTED, folder)
    values = {
        "method": method, "data": {"train": str(folder / "train.jsonl")}, "settings": {**SETTINGS, **dict(settings)},
        "split": split, "steps": STEPS, "save_every_steps": EVERY, **more,
    }  # fmt: skip
    words = (NOTED.name, "sft", str(split["ranks"]))
    done = run_job(python, folder, *words, ends_with=ends_with, **values)
    return done.stdout + done.stderr * is_told


def losses(folder):
    """The loss of each step; a later one counts."""
    return {step: loss for (step, _), loss in figures(folder, "loss").items()}


def newest(folder):
    """The checkpoint from which a run would resume."""
    manifests = (folder / "checkpoints").glob("[!.]*/manifest.json")
    found = [(json.loads(path.read_text())["step"], str(path.parent)) for path in manifests]
    return dict(zip(("step", "path"), max(found), strict=True))


def weights(folder):
    """The file of the weights that a run has trained."""
    (found,) = (folder / "artifacts").glob("*/*.safetensors")
    return found.read_bytes()


@pytest.mark.parametrize("steps", [12, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("rows", "packing"),
    [
        pytest.param(chats, False, id="messages"),
        pytest.param(pairs, False, id="completion only"),
        pytest.param(chats, True, id="packing"),
    ],
)
def test_the_losses_are_those_of_trl_itself(python, tmp_path, rows, packing, steps):
    """The same rows in the same order: unrounded losses within a millionth, and as many tokens seen."""
    shared, made = load("shared"), rows(30)
    sft(
        python,
        tmp_path,
        made,
        settings={"packing": packing, "max_length": 10_000, "learning_rate": 1e-3},
        steps=steps,
    )
    sampler, order = shared.StepSampler(lengths_of(tmp_path / "base", made), 8, 0), []
    for epoch in range(1 + steps * 8 // len(made)):
        sampler.set_epoch(epoch)
        order += list(sampler)
    arguments = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": steps, "learning_rate": 1e-3,
        "max_length": None, "padding_free": packing, "assistant_only_loss": "messages" in made[0],
    }  # fmt: skip
    asked = made if "messages" in made[0] else [{**row, "prompt": row["prompt"] + "\n"} for row in made]
    given = [str(tmp_path / "base"), [asked[place] for place in order[: steps * 8]], arguments]
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "given.json").write_text(json.dumps(given))
    done = python.run("beside.py", folder=tmp_path, variables={})
    assert done.returncode == 0, done.stdout + done.stderr
    beside = json.loads(done.stdout.splitlines()[-1])
    ours = losses(tmp_path)
    assert [*ours] == [*range(1, steps + 1)]
    assert list(ours.values()) == pytest.approx([line["loss"] for line in beside], abs=1e-6)
    assert ours[steps] < ours[1]
    assert sum(one["tokens"] for one in noted(tmp_path, "micro-batch")) == beside[-1]["num_tokens"]


def lengths_of(model, rows):
    """The number of tokens of each row, by the tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if "messages" in rows[0]:
        return [
            len(tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"]) for row in rows
        ]
    return [len(tokenizer(f"{row['prompt']}\n{row['completion']}")["input_ids"]) + 1 for row in rows]


@pytest.mark.parametrize(
    ("ranks", "packing", "seed"),
    [
        (1, False, 0),
        (1, True, 1),
        (2, True, 2),
        *(
            pytest.param(ranks, packing, seed, marks=pytest.mark.long)
            for ranks, packing, seed in (
                (1, False, 3),
                (1, True, 4),
                (2, False, 5),
                (2, False, 6),
                (2, True, 7),
            )
        ),
    ],
)
def test_killed_and_resumed_it_ends_as_the_unbroken_one_did(python, tmp_path, ranks, packing, seed):
    """With chats of several turns, dropout in the adapter, and NEFTune's noise: each loss, and the weights bit by bit.

    The seed draws the step and the rank that is killed.
    """
    folders = plain, killed = tmp_path / "plain", tmp_path / "killed"
    settings = {"packing": packing, "lora_dropout": 0.2, "neftune_noise": 5.0}
    about = {
        "method": "lora",
        "settings": settings,
        "split": {**SPLIT, "ranks": ranks, "accumulation": 2 // ranks},
    }
    for folder in folders:
        folder.mkdir()
    sft(python, plain, chats(30), **about)
    dice = random.Random(seed)
    step = dice.randrange(EVERY + 1, STEPS)
    (killed / "kill").write_text(f"{step} {dice.randrange(ranks)}")
    sft(python, killed, chats(30), **about, ends_with=-signal.SIGKILL)
    (killed / "kill").unlink()
    assert max(losses(killed)) < step
    sft(python, killed, chats(30), **about, checkpoint=newest(killed))
    assert begins(killed) == [0, (step - 1) // EVERY * EVERY]
    assert losses(killed) == losses(plain)
    assert weights(killed) == weights(plain)


@pytest.mark.parametrize("packing", [False, True])
def test_a_batch_is_the_same_divided_in_any_way(python, tmp_path, packing):
    """8 x 4, 4 x 8 and two ranks, over the end of an epoch, whose last step is short: the losses within two millionths."""
    found = []
    for number, (ranks, micro) in enumerate(((1, 8), (1, 4), (2, 8))):
        folder = tmp_path / str(number)
        folder.mkdir()
        split = {
            "global_batch": 32,
            "ranks": ranks,
            "micro_batch": micro,
            "accumulation": 32 // ranks // micro,
        }
        settings = {"packing": packing, "learning_rate": 1e-3}
        sft(python, folder, chats(75), settings=settings, split=split, steps=7, save_every_steps=None)
        assert len(noted(folder, "micro-batch", ranks - 1)) == 7 * split["accumulation"]
        found.append(losses(folder))
    assert [*found[0]] == [*range(1, 8)]
    for one in found[1:]:
        assert one == pytest.approx(found[0], abs=2e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_do_not_see_each_other(tmp_path, attention):
    """The collator that `packing` uses: each row's logits are those it has alone."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    save_model(tmp_path / "base", seed=0, layers=2)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", attn_implementation=attention, dtype=torch.float32
    )
    rows = [{"input_ids": [*range(3, 3 + length)], "labels": [*range(3, 3 + length)]} for length in (9, 4, 7)]
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    with torch.no_grad():
        packed = model.eval()(
            **{name: value for name, value in batch.items() if name != "labels"}, use_cache=False
        ).logits[0]
        alone = [model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_the_adapter_and_the_merge_answer_as_the_evaluation_did(python, tmp_path):
    """The adapter by peft over the base, and the merge by transformers alone; the card names the base, not a path of the host."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = pairs(20)
    settings = {"generate": "text", "merge": True, "eval_share": 0.2, "max_new_tokens": 6, "lora_rank": 4}
    printed = sft(python, tmp_path, rows, method="lora", settings=settings)
    assert "held out: 4 of 20 rows, drawn by seed 0" in printed
    artifacts = tmp_path / "artifacts"
    samples = [json.loads(line) for line in (artifacts / "samples.jsonl").read_text().splitlines()]
    last = [sample for sample in samples if sample["step"] == STEPS]
    assert len(last) == len(samples) / 2 == 4
    tokenizer = AutoTokenizer.from_pretrained(artifacts / "merged")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tuned = PeftModel.from_pretrained(base, artifacts / "adapter")
    for model in (tuned, AutoModelForCausalLM.from_pretrained(artifacts / "merged")):
        for sample in last:
            tokens = tokenizer(sample["prompt"], return_tensors="pt", return_token_type_ids=False)
            made = model.generate(**tokens, max_new_tokens=6, do_sample=False)[
                0, tokens["input_ids"].shape[1] :
            ]
            assert tokenizer.decode(made, skip_special_tokens=True) == sample["output"]
    config = json.loads((artifacts / "adapter" / "adapter_config.json").read_text())
    card = (artifacts / "adapter" / "README.md").read_text()
    assert config["base_model_name_or_path"] == "base"
    assert "base_model: base" in card
    for words in (
        "| method | lora |",
        "| data | train.jsonl, 16 rows |",
        "| held out | of the data, drawn by the seed, 4 rows |",
        "| batch | 8 examples a step |",
        "| precision | fp32 |",
        '"optim": "auto"',
    ):
        assert words in card
        assert words in (artifacts / "merged" / "README.md").read_text()
    result = json.loads((artifacts / "result.json").read_text())
    assert {"eval_loss", "perplexity", "accuracy"} < result.keys()


@pytest.mark.parametrize(
    ("count", "ends_with", "said"),
    [
        (3, 0, "held out: 1 of 3 rows are longer than max_length = 40 tokens: left out"),
        (1, 1, "no held-out row is left to judge by: 1 of 1 rows are longer than max_length = 40 tokens"),
    ],
)
def test_held_out_rows_that_are_too_long_are_counted(python, tmp_path, count, ends_with, said):
    """They are treated as the rows to train on are, for the loss and for the answers."""
    long = {"prompt": "1 km in m?" + " please" * 40, "completion": "1000"}
    held = [long, *pairs(count - 1)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    data = {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "held.jsonl")}
    settings = {"max_length": 40, "generate": "text", "max_new_tokens": 2}
    told = sft(
        python, tmp_path, pairs(8), settings=settings, data=data, steps=1, ends_with=ends_with, is_told=True
    )
    assert said in told
    if ends_with == 0:
        artifacts = tmp_path / "artifacts"
        assert (
            "| held out | held.jsonl, 3 rows, as 2 examples |"
            in (artifacts / "model" / "README.md").read_text()
        )
        samples = [
            json.loads(line)["prompt"] for line in (artifacts / "samples.jsonl").read_text().splitlines()
        ]
        assert samples == [row["prompt"] + "\n" for row in pairs(2)] * 2
        assert "2 of 3 held-out rows are also trained on" in told


def test_answers_are_refused_where_no_row_asks_for_one(python, tmp_path):
    """Before the training, which would end without them."""
    rows = [{"text": row["prompt"]} for row in pairs(8)]
    settings = {"generate": "text", "eval_share": 0.5}
    told = sft(python, tmp_path, rows, settings=settings, steps=1, ends_with=1, is_told=True)
    assert "settings.generate: no held-out row of at most" in told


def patient(python, folder, **more):
    """Train on rows that contradict those held out: the first steps help, by the form of an answer, and later ones harm."""
    folder.mkdir(exist_ok=True)
    (folder / "held.jsonl").write_text(
        "".join(json.dumps({**row, "completion": row["completion"][::-1]}) + "\n" for row in pairs(20))
    )
    data = {"train": str(folder / "train.jsonl"), "eval": str(folder / "held.jsonl")}
    settings = {"eval_steps": 2, "patience": 2, "learning_rate": 0.03, "lora_rank": 4}
    more = {"method": "lora", "settings": settings, "data": data, "steps": 60, "keep_checkpoints": 1, **more}
    sft(python, folder, pairs(4), **more)
    return folder


def test_patience_counts_the_evaluations_before_a_kill(python, tmp_path):
    """The resumed training ends at the same step, with the same weights."""
    plain = patient(python, tmp_path / "plain")
    last = max(losses(plain))
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "kill").write_text(f"{last - 1} 0")
    patient(python, killed, ends_with=-signal.SIGKILL)
    (killed / "kill").unlink()
    patient(python, killed, checkpoint=newest(killed))
    assert 0 < begins(killed)[-1] < last
    assert losses(killed) == losses(plain)
    assert weights(killed) == weights(plain)


def test_patience_ends_the_training_and_ships_the_best_weights(python, tmp_path):
    from safetensors.torch import load_file

    patient(python, tmp_path)
    measured = {step: loss for (step, _), loss in figures(tmp_path, "eval_loss").items()}
    best = min(measured, key=measured.get)
    assert 0 < best == max(measured) - 4 < 56
    result = json.loads((tmp_path / "artifacts" / "result.json").read_text())
    assert (result["best_step"], result["eval_loss"]) == (best, measured[best])
    shipped = load_file(tmp_path / "artifacts" / "adapter" / "adapter_model.safetensors")
    kept = load_file(tmp_path / "checkpoints" / f"checkpoint-{best}" / "adapter_model.safetensors")
    assert shipped.keys() == kept.keys()
    assert all((shipped[name] == kept[name]).all() for name in kept)
    assert f"best_step {best}" in (tmp_path / "artifacts" / "adapter" / "README.md").read_text()


@pytest.mark.parametrize(
    ("settings", "template", "said"),
    [
        (
            {"max_length": 2},
            TEMPLATE,
            "no row is left to train on: 30 of 30 rows are longer than max_length = 2",
        ),
        ({}, "{% for m in messages %}{{ m.content }}{% endfor %}", "TRL refuses this training"),
        ({}, None, "the model has no chat template"),
        ({"lora_targets": "none_such"}, TEMPLATE, "TRL refuses this training"),
        (
            {"lora_targets": "q_proj,v_porj"},
            TEMPLATE,
            "the model has no 'v_porj'; its linear layers: down_proj, gate_proj,",
        ),
        (
            {"answer_tags": True},
            TEMPLATE,
            "settings.answer_tags is for prompts with answers, and the rows are messages",
        ),
        ({"generate": "tags", "eval_share": 0.2}, TEMPLATE, "no held-out answer has <answer> tags"),
        ({"optim": "adamm"}, TEMPLATE, "TRL refuses this training: adamm is not a valid OptimizerNames"),
    ],
)
def test_what_cannot_be_trained_is_told_without_a_traceback(python, tmp_path, settings, template, said):
    from transformers import AutoTokenizer

    save_model(tmp_path / "base", seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "base")
    told = sft(python, tmp_path, chats(30), method="lora", settings=settings, ends_with=1, is_told=True)
    assert said in told
    assert "Traceback" not in told
