"""The tables of docs/precision.md: what fits on which card, and published peaks. `pytest --rewrite-cases` writes them."""

import pytest
from testbed.client import REPOSITORY
from testbed.profiles import profile

from launcher.config.resolve import cards
from launcher.errors import RefusedError
from launcher.planning.alternatives import METHODS
from launcher.planning.assembly import ladder_inputs
from launcher.planning.precision.ladder import LadderInputs, ladder, too_large
from launcher.planning.precision.memory import Training, estimate
from launcher.planning.precision.workload import Workload
from launcher.values.job import Job
from launcher.values.model import read_model
from launcher.values.precision import SHORT

PAGE = REPOSITORY / "docs" / "precision.md"
BEGIN, END = "<!-- {}: pytest tests/planning/test_what_fits.py --rewrite-cases -->\n", "<!-- end -->\n"
TITLES = {"lora": "LoRA", "qlora": "QLoRA", "full": "full"}


def shape(hidden, inner, layers, heads, groups, vocabulary, head=128, *, is_tied=False):
    return read_model(
        {"dtype": "bfloat16", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": head,
         "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary, "tie_word_embeddings": is_tied}
    )  # fmt: skip


MODELS = {
    "1B": shape(2048, 8192, 16, 32, 8, 128256, 64, is_tied=True),
    "3B": shape(3072, 8192, 28, 24, 8, 128256, is_tied=True),
    "8B": shape(4096, 14336, 32, 32, 8, 128256),
    "14B": shape(5120, 13824, 48, 40, 8, 152064),
    "32B": shape(5120, 27648, 64, 40, 8, 152064),
    "70B": shape(8192, 28672, 80, 64, 8, 128256),
}
"""Llama 3.2 1B and 3B, Llama 3 8B, Qwen2.5 14B and 32B, Llama 3 70B, by their public config.json."""


def cell(card, method, model):
    """The first rung, a star for activation checkpointing; `no` if nothing fits."""
    job = Job(name="x", command=("python", "x.py"), method=method, settings={"optim": "auto"})
    case = ladder_inputs(card, job, model, None)
    try:
        rung = ladder(case).rungs[0]
    except RefusedError:  # qlora on a card that cannot
        return "no"
    if too_large(case, rung):
        return "no"
    star = " *" if case.workload.is_checkpointed else ""
    if rung.mode == "bf16-weights":
        return f"{rung.mode}{star}"
    is_tf32 = rung.tf32 and rung.autocast_dtype is None
    compute = "tf32" if is_tf32 else SHORT[rung.autocast_dtype or rung.base_dtype]
    base = rung.quantization or SHORT[rung.base_dtype]
    return f"{compute} / {base}{star}"


def table():
    """Cards whose rows are the same share them; the smallest card is first."""
    alone = [card for card in cards() if card.kind == "cuda" and card.count == 1]
    rows = {}
    for card in sorted(alone, key=lambda one: (one.memory_bytes, one.compute, one.name)):
        cells = {method: [cell(card, method, model) for model in MODELS.values()] for method in METHODS}
        rows.setdefault(
            tuple(cells[method][at] for method in TITLES for at in range(len(MODELS))), []
        ).append(card.title)
    lines = [f"| card | method | {' | '.join(MODELS)} |", f"| --- | --- |{' --- |' * len(MODELS)}"]
    for cells, titles in rows.items():
        for place, title in enumerate(TITLES.values()):
            part = cells[place * len(MODELS) : (place + 1) * len(MODELS)]
            lines.append(f"| {', '.join(titles) if place == 0 else ''} | {title} | {' | '.join(part)} |")
    return "\n".join(lines) + "\n"


QWEN = shape(4096, 11008, 32, 32, 32, 151936)
PUBLISHED = (
    *(("Qwen-7B", QWEN, "lora", tokens, 1, 64, peak) for tokens, peak in ((256, 20.1), (1024, 21.5), (4096, 29.7), (8192, 36.6))),
    *(("Qwen-7B", QWEN, "qlora", tokens, 1, 64, peak) for tokens, peak in ((256, 11.5), (1024, 12.3), (4096, 16.9), (8192, 23.5))),
    *(("Llama-3.1-8B", MODELS["8B"], method, 2048, 2, 8, gib * 2**30 / 1e9) for method, gib in (("lora", 16.2), ("qlora", 7.4))),
    *(("Llama-3.1-8B", MODELS["8B"], "qlora", tokens, 1, 32, peak) for tokens, peak in ((932, 12), (5789, 24), (28454, 80))),
)  # fmt: skip
"""Model, method, tokens of a sample, micro-batch, rank, GB; docs/precision.md has the sources."""


def published():
    """With the plan's AdamW and activation checkpointing, on an A100."""
    lines = [
        "| model | method | tokens | micro-batch | rank | published, GB | estimated, GB |",
        f"|{' --- |' * 7}",
    ]
    for name, model, method, tokens, micro, rank, peak in PUBLISHED:
        workload = Workload(tokens, "adamw-planned", rank, is_checkpointed=True)
        rung = ladder(LadderInputs(profile("a100_80gb"), method)).rungs[0]
        needed = estimate(Training(model, method, workload), rung, micro).total / 1e9
        words = (name, TITLES[method], tokens, micro, rank, f"{peak:.1f}", f"{needed:.1f}")
        lines.append(f"| {' | '.join(map(str, words))} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "written"), [("what fits", table), ("published peaks", published)], ids=["fits", "published"]
)
def test_the_docs_have_the_table(request, name, written):
    """As it is computed today for all cards that ship."""
    begin = BEGIN.format(name)
    before, _, rest = PAGE.read_text().partition(begin)
    found, _, after = rest.partition(END)
    if request.config.getoption("--rewrite-cases"):
        PAGE.write_text(f"{before}{begin}{written()}{END}{after}")
        return
    assert found == written()


def test_the_models_of_the_table_have_their_published_sizes():
    """In billions, as their pages say."""
    sizes = [round(model.billions, 1) for model in MODELS.values()]
    assert sizes == [1.2, 3.2, 8.0, 14.8, 32.8, 70.6]
