"""Feed each subject with generated cases and write the table: `make fuzz`. `run.py COUNT NAME …` feeds some subjects."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.subjects import SUBJECTS

CASES = 100_000
TABLE = Path(__file__).parent / "FUZZ.md"
HEAD = """# Generated cases

`make fuzz` writes this table, each row in a process of its own. CI runs a fixed part of each subject. A case is fed to the functions that
`launch` calls, in one process; a file stream comes over a real channel, from a host that says what was generated.

| what | cases | tracebacks | slowest case | memory grown by | all | on |
| --- | --- | --- | --- | --- | --- | --- |
"""


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
            last = f"{traceback.format_exc(limit=-4)}\n{name}, seed {seed}"
        slowest = max(slowest, time.perf_counter() - began)
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    return failures, slowest, last


def measure(name: str, count: int) -> bool:
    """Feed a subject, print its row, and put it into the table if it had all cases; return whether no case failed."""
    feed(name, count, 20)  # what is imported and cached once is no growth
    before, began = _peak_mb(), time.perf_counter()
    failures, slowest, last = feed(name, 0, count)
    minutes = (time.perf_counter() - began) / 60
    row = (
        f"| {name} | {count:,} | {failures} | {slowest:.2f} s | {_peak_mb() - before:.0f} MB | {minutes:.1f} min "
        f"| {datetime.now(UTC):%Y-%m-%d} |"
    )
    print(row, "\n".join(line[:300] for line in last.splitlines()[-12:]), flush=True)
    if count == CASES:
        rows = {line.split("|")[1].strip(): line for line in _lines() if line.startswith("| ")}
        rows[name] = row
        TABLE.write_text(HEAD + "".join(f"{rows[one]}\n" for one in SUBJECTS if one in rows))
    return not failures


def _lines() -> list[str]:
    return TABLE.read_text().splitlines() if TABLE.exists() else []


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Feed all subjects, each in a process of its own, or those that are named; return 1 if a case gave a traceback."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    names = sys.argv[2:]
    if not names:
        done = [
            subprocess.run([sys.executable, __file__, str(count), name], check=False) for name in SUBJECTS
        ]
        return int(any(one.returncode for one in done))
    if os.access("/dev/shm", os.W_OK):  # each case makes a folder
        tempfile.tempdir = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="fuzz-home-") as home:
        os.environ.update(HOME=home, XDG_CONFIG_HOME=home, XDG_DATA_HOME=home)
        is_sound = [measure(name, count) for name in names]
    return int(not all(is_sound))


if __name__ == "__main__":
    sys.exit(main())
