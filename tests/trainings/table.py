"""Runs every case of the corpus, and writes TRAININGS.md: `make trainings`. About four minutes; 1 if the guard was wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainings.harness import HALVES, Outcome, mistake, names, outcomes

TABLE = Path(__file__).with_name("TRAININGS.md")
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate")
HEAD = """# Trainings under the guard

Written by `make trainings`; do not edit.

Each case is a file of `tests/trainings/`: a tiny training with the real worker, in a process of its own, at each precision that applies.
A card's precision is rehearsed on a CPU. A healthy training must run to its end, and learn what it claims. A broken one must be ended
by its true class, within five steps of the harm, or a few more where the case says so.

{libraries}.
"""


def rows(cases: Sequence[tuple[ModuleType, Outcome]]) -> Iterable[str]:
    """Return a line of the table for each case: what it is, its end at each precision, and whether all are right."""
    for name in dict.fromkeys(outcome.case for _, outcome in cases):
        ends = {outcome.precision: (case, outcome) for case, outcome in cases if outcome.case == name}
        case = next(iter(ends.values()))[0]
        cells = [_cell(ends[mode][1]) if mode in ends else "-" for mode in HALVES]
        is_right = not any(mistake(*end) for end in ends.values())
        harm = f" Harm at step {case.HARM_AT}." if hasattr(case, "HARM_AT") else ""
        harm += f" Noticed within {case.NOTICED_WITHIN} steps." if hasattr(case, "NOTICED_WITHIN") else ""
        sentence = " ".join((case.__doc__ or "").partition("\n\n")[0].split())
        shown = [name.partition("/")[2], sentence + harm, *cells, "yes" if is_right else "NO"]
        yield f"| {' | '.join(shown)} |"


def _cell(outcome: Outcome) -> str:
    warned = ", warned" if outcome.warnings else ""
    return outcome.verdict + (f" at {outcome.step}" if outcome.step is not None else warned)


def main() -> int:
    """Write the table, and name what the guard judged falsely."""
    text = [HEAD.format(libraries=", ".join(f"{name} {version(name)}" for name in LIBRARIES))]
    mistakes = []
    for kind in ("healthy", "broken"):
        cases = list(outcomes(names(kind)))
        wrong = [found for case, outcome in cases if (found := mistake(case, outcome))]
        mistakes += wrong
        text += [
            f"## {kind.capitalize()}: {len(names(kind))} cases, {len(cases)} trainings, {len(wrong)} judged falsely\n",
            f"| case | what it is | {' | '.join(HALVES)} | right |",
            f"| --- | --- | {' | '.join('---' for _ in HALVES)} | --- |",
            *rows(cases),
            "",
        ]
    TABLE.write_text("\n".join(text).rstrip() + "\n")
    print("\n".join(mistakes) or f"wrote {TABLE}")
    return int(bool(mistakes))


if __name__ == "__main__":
    sys.exit(main())
