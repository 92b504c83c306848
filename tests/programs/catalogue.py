"""The programs: what is started, what it needs, which readings its ledger allows, and which end is right."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from programs import materials
from programs.launching import End, Program
from programs.ledger import Ledger, Reading

Readings = Callable[[Ledger], Iterable[Reading]]
GOOD = End("succeeded", "exit-only")
NO_MODULE = End("failed", "missing-dependency")
OWN_ERROR = End("failed", "user-code-error")


# which readings are right


def nothing(_: Ledger) -> list[Reading]:
    """No reading is right: the program prints none."""
    return []


def logged(ledger: Ledger) -> list[Reading]:
    """What the program gave to its own logger, at that logger's step."""
    return ledger.logged


def each_loss(ledger: Ledger) -> list[Reading]:
    """The loss of each optimizer step, which counts from 1."""
    return [Reading(step, "loss", loss) for step, loss in enumerate(ledger.by_update(), 1)]


def means(every: int, name: str = "loss", *, is_placed: bool = True) -> Readings:
    """Return the mean loss of every so many optimizer steps, at the last of them; without a step if none is printed."""

    def readings(ledger: Ledger) -> list[Reading]:
        losses = ledger.by_update()
        ends = range(every, len(losses) + 1, every)
        return [
            Reading(end if is_placed else None, name, statistics.fmean(losses[end - every : end]))
            for end in ends
        ]

    return readings


def printed(pattern: str) -> Readings:
    """Return what the program's own format of a line says: each group is a metric, `step` its step."""

    def readings(ledger: Ledger) -> list[Reading]:
        found = []
        for match in re.finditer(pattern, ledger.log):
            groups = {name: text for name, text in match.groupdict().items() if text is not None}
            step = int(groups.pop("step")) if "step" in groups else None
            found += [Reading(step, name, float(text)) for name, text in groups.items()]
        return found

    return readings


def either(*rules: Readings) -> Readings:
    """Return the readings of several rules."""
    return lambda ledger: [reading for rule in rules for reading in rule(ledger)]


# the programs


def in_folders(**makers: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a maker of several things, each in a folder of its own."""

    def make(project: Path) -> None:
        for name, maker in makers.items():
            maker(project / name)

    return make


def accelerate(name: str, end: End, said: str = "") -> Program:
    """Return a script that accelerate ships to test an installation. It trains, and prints no metric."""
    command = ("python", "-m", f"accelerate.test_utils.scripts.{name}")
    return Program(f"accelerate {name}", (), command, materials.none, nothing, end, 0, said=said)


def stanza(
    name: str, files: Callable[[Path], None], readings: Readings, words: str, *, fewest: int
) -> Program:
    """Return one of stanza's trainings."""
    command = ("python", "-m", f"stanza.models.{name}", "--shorthand", "en_x", *words.split())
    return Program(f"stanza {name}", (), command, files, readings, GOOD, fewest)


IN_CI = (
    accelerate("test_script", GOOD),
    accelerate("external_deps.test_performance", NO_MODULE, "launch --with evaluate"),
    accelerate("test_distributed_data_loop", OWN_ERROR, "this script expects that two GPUs are available"),
    stanza(
        "tagger",
        materials.tagged,
        either(
            each_loss,
            means(20, "train_loss"),
            printed(r"STEP (?P<step>\d+)/60, .* lr: (?P<lr>\S+)"),
            printed(r"step (?P<step>\d+): .* dev_score = (?P<dev_score>\S+)"),
        ),
        "--train_file train.conllu --eval_file dev.conllu --lang en --no_pretrain --max_steps 60 --eval_interval 20"
        " --log_step 10 --batch_size 40 --hidden_dim 20 --char_hidden_dim 10",
        fewest=12,
    ),
    stanza(
        "charlm",
        materials.plain_text,
        either(
            means(10),
            printed(r"\| epoch +(?P<epoch>1) \| +(?P<step>\d+)/.* ppl +(?P<ppl>\S+)"),
            printed(r"\| epoch +(?P<epoch>\d+) \|.* loss +(?P<loss>\S+) \| ppl +(?P<ppl>\S+)"),
            printed(r"global step +(?P<step>\d+) .* loss +(?P<eval_loss>\S+) \| ppl +(?P<eval_ppl>\S+)"),
        ),
        "--train_file train.txt --eval_file dev.txt --epochs 2 --char_hidden_dim 32 --char_emb_dim 16 --batch_size 4"
        " --bptt_size 20 --report_steps 10 --cutoff 0",
        fewest=30,
    ),
)
"""Those that CI runs, in the environment of the tests."""

TRL = ("trl==1.16.0",)
LIGHTNING = ("lightning==2.6.6", "jsonargparse[signatures]==4.41.0")


def trl(name: str, files: Callable[[Path], None], *words: str) -> Program:
    """Return one of trl's scripts with a tiny Llama."""
    command = (
        "python", "-m", f"trl.scripts.{name}", "--dataset_name", "data", "--output_dir", "out", "--max_steps", "8",
        "--logging_steps", "2", "--per_device_train_batch_size", "2", "--report_to", "none", "--use_cpu", "true",
        "--eval_strategy", "steps", "--eval_steps", "4", "--save_strategy", "no", "--bf16", "false",
        "--gradient_checkpointing", "false", "--model_name_or_path", "model", *words,
    )  # fmt: skip
    return Program(f"trl {name}", TRL, command, files, logged, GOOD, 20)


SENTENCES = in_folders(model=materials.tiny_llama, data=materials.sentences)
PREFERENCES = in_folders(model=materials.tiny_llama, data=materials.preferences)
REWARDS = in_folders(model=materials.tiny_judge, data=materials.preferences)

PROGRAMS = (
    *IN_CI,
    trl("sft", SENTENCES),
    trl("dpo", PREFERENCES),
    trl("reward", REWARDS),
)
