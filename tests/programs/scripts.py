"""Training programs that nobody here wrote: `make scripts` launches all of them, and writes PROGRAMS.md.

`scripts.py NAME …` launches those whose name begins so, and writes nothing; `--keep` keeps their folders.
"""

from __future__ import annotations

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
    "readings: right / absent / wrong",
    "from",
    "steps",
    "end told",
    "as it should",
    "s",
)


def main(words: list[str]) -> int:
    """Launch the programs, print each outcome as it is found, and return 1 if one is wrong."""
    names = [word for word in words if not word.startswith("--")]
    chosen = [one for one in PROGRAMS if not names or one.name.startswith(tuple(names))]
    outcomes = []
    for program in chosen:
        folder = Path(tempfile.mkdtemp(prefix="launch-programs-"))
        outcome = launch(program, folder, environment(program.packages, cache()))
        outcomes.append(outcome)
        print("  ".join(row(outcome)), *outcome.faults[:20], sep="\n    ", flush=True)
        if "--keep" in words:
            print(f"    {folder}", outcome.said, sep="\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not names:
        TABLE.write_text(table(outcomes))
    return int(any(outcome.faults for outcome in outcomes))


def row(outcome: Outcome) -> list[str]:
    """Return an outcome as cells of the table."""
    program, verdict = outcome.program, outcome.verdict
    counts = f"{verdict.right} / {verdict.absent} / {len(verdict.wrong)}"
    end = f"{outcome.end.state}: {outcome.end.reason}" + (", with a doubt" if outcome.end.has_doubt else "")
    command = f"`{' '.join(program.command[:4])} …`"
    package = program.packages[0] if program.packages else "(torch, transformers, accelerate)"
    return [
        program.name, package, command, counts, " and ".join(sorted(outcome.sources)) or "-", str(outcome.steps or "-"),
        end, "no" if outcome.faults else "yes", f"{outcome.seconds:.0f}",
    ]  # fmt: skip


def table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as Markdown."""
    rows = [HEAD, ["---"] * len(HEAD), *map(row, outcomes)]
    return f"""\
# Programs that nobody here wrote

Written by `make scripts`; do not edit.

{time.strftime("%Y-%m-%d")}. They ship inside packages, run unmodified in an environment of their own.

""" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
