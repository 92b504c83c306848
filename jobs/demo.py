"""Make the demo: a small language model and questions on which a fine-tune can be seen to work.

    python demo.py FOLDER        # make it, or find it made, below FOLDER; about 30 s

The model is Llama-shaped with 455k parameters and one token a character. It converts units by powers of ten
("37 km in m?" -> "37000") and answers plainly; `sft.py` then teaches it to wrap its answers in tags, so accuracy
by tags goes from 0 to 1 within 200 steps. A LoRA over random weights would learn nothing worth showing.
Beside it is an untrained student of a quarter of its size, for `distill.py`.

Everything is made here from the constants below and a seed: nothing is downloaded. It always trains on the CPU, so
that a broken GPU set-up shows in the fine-tune, which is watched, and not here.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import launcher_worker as worker
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    get_cosine_schedule_with_warmup,
)

# The recipe. Its digest names the folder, so a changed recipe is a new demo.
RECIPE = {
    "version": 2,
    "seed": 1121,
    "prefixes": {"k": 3, "": 0, "d": -1, "c": -2, "m": -3},  # powers of ten
    "units": ["m", "g", "l"],
    "numbers": 1000,  # 1 to 999
    "train": 6400,
    "eval": 200,
    "model": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.08,  # with less, a LoRA hardly reaches characters new to the base: the tags
    },
    "student": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    },
    "steps": 350,
    "batch": 64,
    "learning_rate": 3e-3,
    "warmup_steps": 50,
}
SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
CHARACTERS = "\n 0123456789.?/<>abcdefghijklmnopqrstuvwxyz"


class Demo(NamedTuple):
    """Where the parts of the demo are: two model folders, and two JSONL files of `prompt` and `answer`."""

    model: str
    student: str
    train: str
    eval: str


def ensure(cache: str) -> Demo:
    """Give the demo below `cache`, making it first if it isn't there.

    Several processes may call this at once: each works in a folder of its own, and the first to finish wins.
    """
    recipe = json.dumps([RECIPE, SPECIAL, CHARACTERS])
    final = Path(cache) / f"demo-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not final.is_dir():
        print(f"making the demo model and data in {final}", flush=True)
        hidden = Path(cache) / f".demo-{uuid.uuid4().hex}"
        hidden.mkdir(parents=True)
        try:
            make(hidden)
            publish(hidden, final)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    return Demo(*(str(final / name) for name in ("model", "student", "train.jsonl", "eval.jsonl")))


def publish(hidden: Path, final: Path) -> None:
    """Give a finished folder its name, unless another process was first."""
    try:
        os.rename(hidden, final)
    except OSError:
        if not final.is_dir():
            raise


def make(folder: Path) -> None:
    """Write model, student, train.jsonl and eval.jsonl into `folder`."""
    rows = questions()
    for name, part in (("eval", rows[: RECIPE["eval"]]), ("train", rows[RECIPE["eval"] :])):
        lines = (json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in part)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    tokens = tokenizer()
    model = train(tokens, rows[RECIPE["eval"] :])
    for name, made in (("model", model), ("student", untrained(tokens))):
        made.save_pretrained(folder / name)
        tokens.save_pretrained(folder / name)


def questions() -> list[tuple[str, str]]:
    """Draw distinct questions with their answers, in random order."""
    prefixes = RECIPE["prefixes"]
    every = [
        (f"{number} {a}{unit} in {b}{unit}?", str(number * 10 ** (prefixes[a] - prefixes[b])))
        for unit in RECIPE["units"]
        for a in prefixes
        for b in prefixes
        if prefixes[a] > prefixes[b]
        for number in range(1, RECIPE["numbers"])
    ]
    chance = random.Random(RECIPE["seed"])  # noqa: S311  # the same data everywhere, and no secret
    return chance.sample(every, RECIPE["train"] + RECIPE["eval"])


def tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token a character."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL.values(), *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, SPECIAL["unk_token"]))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, padding_side="right", **SPECIAL)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for a while.

    So small a model gains little from a second, and two processes with more threads than cores wait for each
    other: making the demo twice at once took 6 minutes with two threads each, half a minute with one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build(tokens: PreTrainedTokenizerFast, shape: dict[str, object]) -> LlamaForCausalLM:
    """Build a model with random weights."""
    ids = {"pad_token_id": tokens.pad_token_id, "eos_token_id": tokens.eos_token_id, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), **ids, **shape))


def untrained(tokens: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the student, always with the same random weights."""
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay its own
        torch.manual_seed(RECIPE["seed"])
        return build(tokens, RECIPE["student"])


def train(tokens: PreTrainedTokenizerFast, rows: list[tuple[str, str]]) -> LlamaForCausalLM:
    """Teach a fresh model to answer without tags, a newline after the question as in `sft.py`."""
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(RECIPE["seed"])
        model = build(tokens, RECIPE["model"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE["learning_rate"])
        scheduler = get_cosine_schedule_with_warmup(optimizer, RECIPE["warmup_steps"], RECIPE["steps"])
        for step in range(RECIPE["steps"]):
            drawn = torch.randint(len(rows), (RECIPE["batch"],)).tolist()
            prompts = [f"{rows[i][0]}\n" for i in drawn]
            batch = tokens(
                [f"{prompt}{rows[i][1]}<eos>" for prompt, i in zip(prompts, drawn, strict=True)],
                padding=True,
                return_tensors="pt",
                return_token_type_ids=False,
            )
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            for row, prompt in enumerate(prompts):
                labels[row, : len(prompt)] = -100  # only the answer counts, as in `sft.py`
            model(**batch, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if (step + 1) % 25 == 0:
                worker.progress("making the demo model", step + 1, RECIPE["steps"])
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python demo.py FOLDER")
    for name, path in ensure(sys.argv[1])._asdict().items():
        print(f"{name}: {path}")
