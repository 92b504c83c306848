"""Feed each subject with generated cases and write the table: `make fuzz`."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.subjects import SUBJECTS

CASES = 100_000
TABLE = Path(__file__).parent / "FUZZ.md"


def feed(name: str, first: int, count: int) -> tuple[int, float, str]:
    """Run the cases of a subject; return the tracebacks, the slowest case in seconds, and the last traceback."""
    failures, slowest, last = 0, 0.0, ""
    for seed in range(first, first + count):
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        began = time.perf_counter()
        try:
            SUBJECTS[name](seed, folder)
        except Exception:  # noqa: BLE001 - any is a finding
            failures += 1
            last = f"{name}, seed {seed}\n{traceback.format_exc(limit=-4)}"
        slowest = max(slowest, time.perf_counter() - began)
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    return failures, slowest, last


def main() -> int:
    """Write the table of all subjects; return 1 if a case gave a traceback."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    names = sys.argv[2:] or list(SUBJECTS)
    rows, failed = [], 0
    for name in names:
        began = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        failures, slowest, last = feed(name, 0, count)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        failed += failures
        took = time.perf_counter() - began
        rows.append(
            f"| {name} | {count:,} | {failures} | {slowest:.2f} s | {grown:.0f} MB | {took / 60:.1f} min |"
        )
        print(rows[-1], last, flush=True)
    head = "| what | cases | tracebacks | slowest case | memory grown by | all |\n| --- | --- | --- | --- | --- | --- |\n"
    if len(sys.argv) < 2:
        TABLE.write_text(
            f"# Generated cases\n\n`make fuzz` wrote this table. CI runs a fixed part of each.\n\n{head}"
            + "\n".join(rows)
            + "\n"
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
