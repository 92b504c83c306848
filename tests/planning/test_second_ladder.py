"""Every card, method, dtype and size: the ladder is what docs/precision.md says. `pytest --rewrite-cases` writes LADDERS.md."""

import itertools
import tomllib
from functools import cache
from pathlib import Path

from planning.second_ladder import second_ladder
from testbed.client import REPOSITORY
from testbed.profiles import profile

from launcher.errors import RefusedError
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.values.model import read_model
from launcher.values.precision import SHORT

TABLE = Path(__file__).with_name("LADDERS.md")
CARDS = sorted(path.stem for path in (REPOSITORY / "profiles").glob("*.toml"))
METHODS = ("lora", "qlora", "full")
BORN = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def llama(vocabulary, hidden, inner, layers, heads, groups, *, is_tied=False):
    return {
        "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "tie_word_embeddings": is_tied,
    }  # fmt: skip


SIZES = {
    "1B": llama(32000, 2048, 5632, 22, 32, 4),
    "3B": llama(128256, 3072, 8192, 28, 24, 8, is_tied=True),
    "7B": llama(32000, 4096, 11008, 32, 32, 32),
    "13B": llama(32000, 5120, 13824, 40, 40, 40),
}
"""TinyLlama, Llama 3.2 3B, Llama 2 7B and 13B."""


@cache  # each reading of one reads all of them
def card_of(name):
    return profile(name)


def of_launcher(card, method, born, config):
    model = read_model({**config, "dtype": BORN[born]})
    try:
        rungs = ladder(LadderInputs(card_of(card), method, model)).rungs
    except RefusedError:
        return []
    return [
        (
            "tf32" if rung.tf32 and rung.autocast_dtype is None else SHORT[rung.autocast_dtype or "float32"],
            SHORT[rung.base_dtype],
        )
        for rung in rungs
    ]


@cache
def ladders():
    return [
        (card, method, born, size, of_launcher(card, method, born, SIZES[size]))
        for card, method, born, size in itertools.product(CARDS, METHODS, BORN, SIZES)
    ]


def test_the_ladder_is_what_its_docs_page_says():
    """Derived a second time from the page alone: no difference."""
    different = []
    for card, method, born, size, rungs in ladders():
        table = tomllib.loads((REPOSITORY / "profiles" / f"{card}.toml").read_text())
        expected = second_ladder(table, method, born, SIZES[size])
        if rungs != expected:
            different.append((card, method, born, size, rungs, expected))
    assert different == []


def test_the_table_of_ladders_is_written_down(request):
    """All of them in one table, as they are today."""
    lines = ["# The ladders of all profiles", "", "Written by `pytest tests/planning --rewrite-cases`; do not edit. A rung is compute / base.", ""]  # fmt: skip
    lines += ["| card | method | saved in | " + " | ".join(SIZES) + " |", "| --- | --- | --- |" + " --- |" * len(SIZES)]  # fmt: skip
    cells = {(card, method, born, size): ", ".join(f"{compute} / {base}" for compute, base in rungs) or "none"
             for card, method, born, size, rungs in ladders()}  # fmt: skip
    for card, method, born in itertools.product(CARDS, METHODS, BORN):
        row = [card, method, born, *(cells[card, method, born, size] for size in SIZES)]
        lines.append(f"| {' | '.join(row)} |")
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite-cases"):
        TABLE.write_text(text)
    assert TABLE.read_text() == text
