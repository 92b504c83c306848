"""What a precision costs in gradients, and whether the guard minds it: `make precision` writes PRECISION.md.

How close each precision's gradient is to fp32's (gradients.py), how the loss with bf16 weights follows (rounding.py), and what the guard said of clean trainings in the same
precisions (clean_seeds.py): nothing, it is hoped. How the loss of a whole fine-tune follows is shown by `make curves`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

TABLE = Path(__file__).with_name("PRECISION.md")


def head() -> str:
    """Return the head of the page, as Markdown."""
    return f"""\
# Gradients and false alarms in each precision

Written by `make precision`; do not edit.

{time.strftime("%Y-%m-%d")}, on a CPU. `docs/same-curve.md` has the curves of a whole fine-tune in each precision.
"""


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


def rounding() -> str:
    """Train with bf16 weights, and return how the loss stands to that of fp32 weights, as Markdown."""
    words = [sys.executable, str(Path(__file__).with_name("rounding.py"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    exact = {(one["rate"], one["seed"]): one for one in found if one["way"] == "fp32"}
    rows = [["rate", "seed", "weights", "mean loss of 200 steps", "to fp32's", "of the last 20", "to fp32's"]]
    rows.append(["---"] * len(rows[0]))
    for one in found:
        to = exact[one["rate"], one["seed"]]
        figures = [
            f"{one['loss']:.4f}",
            _share(one, to, "loss"),
            f"{one['last']:.4f}",
            _share(one, to, "last"),
        ]
        rows.append([f"{one['rate']:g}", str(one["seed"]), one["way"], *figures])
    return """
## bf16 weights

The demo's model learns its tags, all weights trained: 200 steps of 16 examples, the same ones in each way, AdamW with a cosine
schedule. `bf16-weights` is the plan's: torchao's AdamW with moments of 8 bits, weights rounded stochastically. It was to stay within
1 % of fp32's mean loss over the 200 steps at rates at which weights rounded to the nearest number do not. Where the loss of the last
steps is near zero, seeds differ by more than the ways do; at 1e-4 it is the moments of 8 bits that make it lower, not the rounding.

""" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _share(one: dict[str, float], exact: dict[str, float], name: str) -> str:
    return "" if one is exact else f"{one[name] / exact[name] - 1:+.2%}"


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
    """Measure, and write the page."""
    TABLE.write_text(head() + gradients() + rounding() + seeds())


if __name__ == "__main__":
    main()
