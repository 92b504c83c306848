"""The parts of `make gpu`: their titles and columns, and which function measures each."""

from __future__ import annotations

from typing import Any, NamedTuple

NOT_ON_A_CPU = "not on a CPU"
"""What stands in a rehearsal in place of a figure that only a card has."""

Row = dict[str, Any]
"""A row's values by column. `ok` says whether a behaviour was as expected; a figure has none."""


class Column(NamedTuple):
    """A column: its key in a row, its head, and the format of its numbers."""

    key: str
    head: str
    form: str = "{:,.2f}"


class Part(NamedTuple):
    """A part: its title, what its figures are, its columns, and its function as `module.function`."""

    title: str
    note: str
    columns: tuple[Column, ...]
    function: str


_WHAT = Column("what", "what")
_OK = Column("ok", "as expected")
_PRECISION = Column("precision", "precision")
_OPTIMIZER = Column("optimizer", "optimizer")
_SHARE = "{:.2%}"
_GAP = "{:.3%}"
_SPEED = Column("tokens_per_s", "tokens/s", "{:,.0f}")
_GB = "{:,.3g}"
_PEAK = Column("peak_gb", "peak, GB", _GB)
_ESTIMATE = Column("estimated_gb", "estimated, GB", _GB)
_CARD = Column("card_gb", "card in use, GB", _GB)
_RUNGS = (
    Column("what", "asked for"),
    _PRECISION,
    _OPTIMIZER,
    _SPEED,
    Column("of_fp32", "of fp32's", "{:.2f} x"),
    Column("of_plain", "of plain's", "{:.2f} x"),
    _PEAK,
    _ESTIMATE,
    _CARD,
    Column("loss", "loss at the end", "{:.4f}"),
    Column("gap_fp32", "farthest from fp32", _GAP),
    Column("gap_plain", "farthest from plain", _GAP),
)
_RUNGS_NOTE = """\
Our `sft` at each precision that the card can compute, on the same model, data and split. The first row is fp32, to which the others
are compared; on a card with tf32 it is that of an older card. `plain` is a script with transformers' defaults: no dtype, no
autocast, its own optimizer.

- tokens/s: the median step after the first ones, by the clock, with the card waited for.
- peak: torch's count of the tensors of the training, beside the plan's estimate.
- card in use: the most that nvidia-smi reported meanwhile, of all that is on the card.
- farthest: the largest distance of two curves of the loss, as a share of the first loss."""
_PAIRS = (
    Column("what", "training"),
    _PRECISION,
    _OPTIMIZER,
    Column("micro", "micro-batch", "{:.0f}"),
    _SPEED,
    Column("bare_tokens_per_s", "bare, tokens/s", "{:,.0f}"),
    Column("of_bare", "of bare's", "{:.3f} x"),
    Column("mfu", "MFU", _SHARE),
    _PEAK,
    Column("bare_peak_gb", "bare, peak, GB", _GB),
    _ESTIMATE,
    _CARD,
    Column("gap_bare", "loss farthest from bare", _GAP),
)
_PAIRS_NOTE = """\
Each beside a script that imports nothing of ours and has the same settings, split, precision and optimizer. A bare `sft` is a
Trainer, a bare `distill` a loop in plain torch. MFU is what `launch metrics` has, the median."""
_EVENTS = (_WHAT, Column("found", "found"), Column("witness", "by another witness"), _OK)

PARTS = {
    "tests": Part(
        "Tests that need a card",
        "Everything marked `gpu`, by pytest.",
        (Column("what", "test"), Column("found", "outcome"), Column("seconds", "seconds", "{:.1f}"), _OK),
        "marked_tests.tests",
    ),
    "lora": Part("Rungs of a LoRA", _RUNGS_NOTE, _RUNGS, "trainings.lora"),
    "full": Part("Rungs of a full fine-tune", "As above.", _RUNGS, "trainings.full"),
    "jobs": Part("Our jobs beside bare scripts", _PAIRS_NOTE, _PAIRS, "trainings.jobs"),
    "billion": Part(
        "A model of a billion parameters",
        "Llama's shape with random weights, saved in bf16. The plan chooses the micro-batch. The runs are stopped before their last step, so that nothing "
        "is saved. transformers' defaults train bf16 weights as they are: less memory, and small updates are lost.",
        _PAIRS,
        "trainings.billion",
    ),
    "guard": Part(
        "What guard, hook and observation cost",
        "Steps with all that launcher puts into torch and Trainer, and without it, in turn, by `tests/bench/guard.py`: the median difference of neighbouring steps, "
        "and where it is in 90 of 100 samples. On a card the clock is the wall's, and the card is waited for; on a CPU it is the process's time.",
        (
            Column("what", "training"),
            Column("parameters", "parameters", "{:,.0f}"),
            Column("tokens", "tokens a step", "{:,.0f}"),
            Column("step_ms", "step, ms"),
            Column("cost_ms", "more, ms"),
            Column("low_ms", "from"),
            Column("high_ms", "to"),
            Column("share", "of the step", _SHARE),
            Column("first_ms", "first steps, once, ms", "{:,.0f}"),
        ),
        "overhead.guard",
    ),
    "start": Part(
        "From the command to the first step",
        "Seconds from the start of the command to the end of the optimizer's first step; `sft` as a LoRA. The median of the rounds, and their range.",
        (_WHAT, Column("seconds", "seconds"), Column("low_s", "from"), Column("high_s", "to")),
        "overhead.start",
    ),
    "oom": Part(
        "Out of memory",
        "A training whose step needs 1.4 times the card's memory with the micro-batch of its plan.",
        _EVENTS,
        "trouble.oom",
    ),
    "taken": Part(
        "A taken card, and leftovers",
        "Processes that the part starts hold the card. Its compute mode is left as it is.",
        _EVENTS,
        "taken.taken",
    ),
    "kill": Part(
        "Kill and resume",
        "`sft` is killed by SIGKILL after a checkpoint, or stopped and resumed, beside a run that is left alone. Steps are counted in a ledger outside the run.",
        _EVENTS,
        "trouble.kill",
    ),
    "memory": Part(
        "Estimated memory beside peaks",
        "Real trainings of transformers, peft and accelerate under plans: the peak of a step of two micro-batches, by `tests/bench/memory.py`. On a card it is "
        "torch's own count of allocated bytes, on a CPU the bytes of all tensors that are alive.",
        (
            Column("what", "training"),
            Column("method", "method"),
            _PRECISION,
            Column("estimated_mb", "estimated, MB", "{:,.1f}"),
            Column("measured_mb", "measured, MB", "{:,.1f}"),
            Column("ratio", "estimated / measured"),
        ),
        "overhead.memory",
    ),
}


def chosen(written: str | None) -> list[str]:
    """Return the names in `PART`, separated by commas, in the order of the table; all without one. Raises KeyError."""
    names = [name.strip() for name in (written or "").split(",") if name.strip()] or list(PARTS)
    for name in names:
        if name not in PARTS:
            raise KeyError(name)
    return [name for name in PARTS if name in names]
