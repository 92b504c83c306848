"""What each precision makes of the same fine-tune: `make precision` runs our `sft` in all of them, and writes PRECISION.md.

Below it stand how close each precision's gradient is to fp32's (gradients.py), and what the guard said of clean trainings
in the same precisions (clean_seeds.py): nothing, it is hoped.

A card's plan runs on this CPU (`--rehearse`): dtypes, autocast, scaler and split are the card's, speed is not.
`precision.py STEPS` takes that many steps in place of 60, and writes nothing: a CPU computes fp16 slowly.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from testbed.client import Client

TABLE = Path(__file__).with_name("PRECISION.md")
STEPS = 60
EXAMPLES = 32


class Way(NamedTuple):
    """A precision as a person asks for it; the first is what the others are held against."""

    what: str
    words: tuple[str, ...]


TURING = ("--rehearse", "--profile", "titan_rtx")
AMPERE = ("--rehearse", "--profile", "a100_40gb")
WIDE = ("--set", "settings.learning_rate=5e-3", "--set", "model=./born-in-bf16")
WAYS = (
    Way("fp32", ("--profile", "cpu")),
    Way("fp32, another split: micro-batch 8 x 4", ("--profile", "cpu", "--set", "batch.micro=8")),
    Way("bf16 autocast, bf16 base, fp32 adapters", AMPERE),
    Way("fp16 autocast + scaler, fp16 base, fp32 adapters", TURING),
    Way("fp16 autocast + scaler, fp32 base, fp32 adapters", (*TURING, *WIDE)),
    Way("fp16-native: all in fp16, Adam's eps 1e-4", (*TURING, "--precision", "fp16-native")),
)


class Outcome(NamedTuple):
    """How a run ended; losses are means of five steps, as the Trainer logs them."""

    state: str
    losses: dict[int, float]
    accuracy: float | None
    skipped: int | None
    title: str


def run(client: Client, way: Way, steps: int) -> Outcome:
    """Run `sft` in one way, to its end."""
    fewer = (
        f"steps={steps}",
        f"batch.global={EXAMPLES}",
        "settings.eval_limit=40",
        "settings.logging_steps=5",
    )
    more = ("--job", "sft", *(word for one in fewer for word in ("--set", one)), *way.words)
    done = client.run("--json", *more, timeout=3600)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    losses = {one["step"]: float(one["value"]) for one in lines if one.get("name") == "loss"}
    accuracy = [one["value"] for one in lines if one.get("name") == "accuracy"]
    proofs = [one["values"]["guard"] for one in lines if "guard" in one.get("values", {})]
    plan = next(one["plan"] for one in lines if one.get("kind") == "plan")
    end = next(one for one in lines if one.get("kind") == "end")
    skipped = proofs[-1]["skipped"] if proofs else None
    return Outcome(
        end["state"], losses, accuracy[-1] if accuracy else None, skipped, plan["ladder"][0]["mode"]
    )


def distance(one: Outcome, other: Outcome) -> float:
    """Return the largest distance of two runs' losses, as a share of the first loss."""
    steps = one.losses.keys() & other.losses.keys()
    first = one.losses[min(one.losses)]
    return max((abs(one.losses[step] - other.losses[step]) / first for step in steps), default=math.nan)


def born_in_bf16(client: Client) -> None:
    """Put the demo's model into the project as if it had been saved in bf16: a plan then begins over an fp32 base."""
    (source,) = (client.home / ".launch" / "cache").glob("demo-*/model")
    target = client.project / "born-in-bf16"
    shutil.copytree(source, target)
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))


def measure(steps: int) -> list[tuple[Way, Outcome, float]]:
    """Run all ways one behind the other, and print each as it is found."""
    folder = Path(tempfile.mkdtemp(prefix="launch-bench-"))
    client = Client(folder)
    found: list[tuple[Way, Outcome, float]] = []
    try:
        for way in WAYS:
            if way.words[-4:] == WIDE:
                born_in_bf16(client)
            outcome = run(client, way, steps)
            found.append((way, outcome, distance(found[0][1] if found else outcome, outcome)))
            print("  ".join(row(*found[-1])), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def row(way: Way, outcome: Outcome, far: float) -> list[str]:
    """Return a run as cells of the table."""
    last = outcome.losses[max(outcome.losses)] if outcome.losses else math.nan
    accuracy = "-" if outcome.accuracy is None else f"{outcome.accuracy:.2f}"
    skipped = "-" if outcome.skipped is None else str(outcome.skipped)
    return [way.what, outcome.state, f"{last:.4f}", f"{far:.2%}", accuracy, skipped]


def table(found: list[tuple[Way, Outcome, float]]) -> str:
    """Return the runs as Markdown."""
    head = ["precision", "ended", "loss at the end", "farthest from fp32", "accuracy", "steps skipped"]
    rows = [head, ["---"] * len(head), *(row(*one) for one in found)]
    text = f"""\
# What each precision makes of the same fine-tune

Written by `make precision`; do not edit.

{time.strftime("%Y-%m-%d")}. Our `sft` with the demo's model and data, {STEPS} steps of {EXAMPLES} examples, on a CPU: a card's plan is rehearsed
(dtypes, autocast, scaler and split are the card's; speed and kernels are not). `farthest from fp32` is the largest
distance between the two curves of the loss, as a share of the first loss.

"""
    return text + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def gradients() -> str:
    """Compute a step's gradient in each precision, and return how close it is to fp32's, as Markdown."""
    words = [sys.executable, str(Path(__file__).with_name("gradients.py")), "large"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    head = ["method", "precision", "cosine to fp32's", "norm, of fp32's", "exactly zero", "chosen by itself"]
    rows = [head, ["---"] * len(head)]
    for one in found:
        figures = [f"{one['cosine']:.4f}", f"{one['norm_ratio']:.4f}", f"{one['zeros']:.1%}"]
        rows.append([one["method"], one["title"], *figures, "yes" if one["is_automatic"] else "no"])
    return """
## How close the gradient of a step is to fp32's

A random Llama of 4 layers, 192 wide, vocabulary 32,768; 131,072 tokens a step in micro-batches of 512, of which the first
four are computed. LoRA on all linear layers. A precision below 0.99 is never chosen automatically; the last two of LoRA cannot
be built. tf32 cannot be computed on a CPU.

""" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def seeds() -> str:
    """Train with fifty seeds in each precision, and return what the guard said of them, as Markdown."""
    words = [sys.executable, str(Path(__file__).with_name("clean_seeds.py"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"""
## False alarms

A LoRA over a tiny random model: thirty steps a seed, half of them with a Trainer (accumulation, evaluation in between, a partial
last batch), half in plain torch; learning rates from 1e-2 to 1e-4, warm-up from zero.

{done.stdout}"""


def main() -> None:
    """Measure; with the usual number of steps the table is written down."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    found = measure(steps)
    if steps == STEPS:
        TABLE.write_text(table(found) + gradients() + seeds())


if __name__ == "__main__":
    main()
