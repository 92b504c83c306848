"""Training programs that nobody here wrote: `make scripts` launches all of them, and writes PROGRAMS.md.

`scripts.py NAME …` launches those whose name begins so, and writes their rows; `--keep` keeps their folders.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from programs.catalogue import PROGRAMS
from programs.launching import Outcome, cache, environment, launch

TABLE = Path(__file__).with_name("PROGRAMS.md")
HEAD = (
    "program",
    "package",
    "command",
    "right / absent / wrong",
    "from",
    "step",
    "end",
    "seconds",
    "date",
    "as it should",
)
INTRODUCTION = """\
# Programs that nobody here wrote

Written by `make scripts`; do not edit.

Training programs that ship inside packages, unmodified, each launched on this machine in an environment of its own, with torch 2.13.0
and small local models and data. A witness inside each process writes down what torch and the program's own logger do: backward passes,
optimizer steps, logged values. What only the output has, such as an accuracy, is read by a pattern of the program's own lines: for JoeyNMT's
and MACE's losses there is no other source. spaCy trains without torch, and its logger writes a file.

A program whose command ends with `.train`, `.fit` and the like is a library's training function, called by the few lines of `calls/`.

*Right*: a value that `launch metrics` has, at the step and under the name that the ledger has. *Absent*: one that the ledger has and
the output may have, and launch does not. *Not printed*: no number with a fraction in the output is that value. *Wrong*: all others. *Step* is the last one that `launch ps` has. {count} launches, wrong: {wrong}.

"""

ENDING = """
Lightning's demos print no value: their losses are in the ledger alone. stanza prints the loss of every tenth step.

## Not here

| program | reason |
| --- | --- |
| the examples of accelerate, peft, diffusers and transformers (Whisper too), the references of torchvision | they are in no wheel and no source archive on PyPI |
| openai-whisper | it has no training program |
| axolotl 0.21, xgboost 3.4 | they need Python 3.12 or newer; xgboost is launched in an older version |
| unsloth | its import refuses PyPI's torchvision, which is not built for the CPU build of torch that is used here |
| open_clip, eole, torchtitan, Lightning's LSTM demo | they install, and were not launched to their end yet |
"""


def main(words: list[str]) -> int:
    """Launch the programs, write the row of each as it is found, and return 1 if one is wrong."""
    names = tuple(word for word in words if not word.startswith("--"))
    faulty = False
    for program in PROGRAMS:
        if names and not program.name.startswith(names):
            continue
        folder = Path(tempfile.mkdtemp(prefix="launch-programs-"))
        outcome = launch(program, folder, environment(program.packages, cache()))
        faulty = faulty or bool(outcome.faults)
        print("  ".join(row(outcome)), *outcome.faults[:20], sep="\n    ", flush=True)
        write(outcome)
        if "--keep" in words:
            print(f"    {folder}", outcome.said, sep="\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return int(faulty)


def write(outcome: Outcome) -> None:
    """Replace a program's row of the table; two of us may run at once."""
    with (cache() / "table.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = TABLE.read_text().partition("\n## ")[0].splitlines() if TABLE.exists() else []
        rows = {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}
        rows[outcome.program.name] = f"| {' | '.join(row(outcome))} |"
        TABLE.write_text(table([rows[one.name] for one in PROGRAMS if one.name in rows]))


def row(outcome: Outcome) -> list[str]:
    """Return an outcome as cells of the table."""
    program, verdict = outcome.program, outcome.verdict
    counts = f"{verdict.right} / {verdict.absent} / {len(verdict.wrong)}"
    counts += f" ({verdict.unprinted} not printed)" if verdict.unprinted else ""
    end = f"{outcome.end.state}: {outcome.end.reason}" + (", with a doubt" if outcome.end.has_doubt else "")
    command = f"`{' '.join(program.shown or program.command[:3])} …`"
    package = program.packages[0] if program.packages else "of the tests"
    return [
        program.name,
        package,
        command,
        counts,
        " and ".join(sorted(outcome.sources)) or "-",
        str(outcome.step or "-"),
        end,
        f"{outcome.seconds:.0f}",
        time.strftime("%Y-%m-%d"),
        "no" if outcome.faults else "yes",
    ]


def table(rows: list[str]) -> str:
    """Return the rows as Markdown, below what they are."""
    wrong = sum(not line.endswith("| yes |") for line in rows)
    head = [f"| {' | '.join(HEAD)} |", f"| {' | '.join('---' for _ in HEAD)} |"]
    return (
        INTRODUCTION.format(count=len(rows), wrong=wrong or "none") + "\n".join([*head, *rows, ""]) + ENDING
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
