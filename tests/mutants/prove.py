"""Break the product on purpose, and see that the tests notice: `make mutants`, or `prove.py NAME …`.

Each patch here is one way to ignore what a plan says. Its first lines say what it breaks, and which test must fail with
it; without it that test must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
AT_ONCE = 2
"""How many mutants are tried at the same time, each in a copy of its own."""


class Mutant(NamedTuple):
    """A patch, what it breaks, and the test that must notice."""

    path: Path
    what: str
    test: str


def mutants() -> list[Mutant]:
    """Return all mutants by name. Raises ValueError for a patch that does not name its test."""
    found = []
    for path in sorted(FOLDER.glob("*.patch")):
        head = dict(
            line.split(": ", 1)
            for line in path.read_text().split("diff --git")[0].splitlines()
            if ": " in line
        )
        if not {"breaks", "noticed-by"} <= head.keys():
            raise ValueError(f"{path.name} does not say what it breaks, or which test notices")
        found.append(Mutant(path, head["breaks"], head["noticed-by"]))
    return found


def copy_to(folder: Path) -> Path:
    """Copy what git tracks, as it lies in the work tree; return the copy."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, tracked.split("\0")):
        source, target = REPOSITORY / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def applies(mutant: Mutant, folder: Path, *, undo: bool = False) -> bool:
    """Apply a patch to a copy, or take it back; return whether it fitted."""
    words = ["git", "apply", *(["--reverse"] if undo else []), str(mutant.path)]
    return subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode == 0


def failures(tests: list[str], folder: Path, number: int) -> list[str]:
    """Run tests in a copy, on a testbed network of that number; return a line for each that failed.

    Raises RuntimeError where they did not run at all.
    """
    words = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"),
        *("-p", "no:xdist", "-m", "not gpu"),  # a long test proves as well
        f"--basetemp={folder.parent / f'tests-{number}'}",  # pytest's own holds what others have left, and is emptied
        *tests,
    ]
    paths = os.pathsep.join([str(folder), str(folder / "launcher" / "worker")])
    env = {**os.environ, "PYTHONPATH": paths, "TESTBED_NETWORK": str(number)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tests} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]


def verdict(mutant: Mutant, folder: Path, number: int) -> str:
    """Apply a patch to a copy, run its test, and take the patch back; return what came of it."""
    if not applies(mutant, folder):
        return "DOES NOT APPLY"
    try:
        has_failed = bool(failures([mutant.test], folder, number))
    except RuntimeError as error:
        return f"DID NOT RUN ({error})"
    finally:
        applies(mutant, folder, undo=True)
    return "noticed" if has_failed else "NOT NOTICED"


def main() -> None:
    """Prove all mutants, or those that are named; exit 1 unless each is noticed, and by no fault of its test."""
    wanted = sys.argv[1:]
    known = [one for one in mutants() if not wanted or one.path.stem in wanted]
    if unknown := set(wanted) - {one.path.stem for one in known}:
        sys.exit(
            f"no mutant {', '.join(sorted(unknown))}; there are: {' '.join(one.path.stem for one in mutants())}"
        )
    with tempfile.TemporaryDirectory(prefix="launch-mutants-") as name:
        first = int(os.environ.get("TESTBED_NETWORK", "77"))
        copies = [(copy_to(Path(name) / f"copy-{n}"), first + 2 * n) for n in range(AT_ONCE)]
        unsound = failures(sorted({one.test for one in known}), *copies[0])
        print(*(f"without any patch: {line}\n" for line in unsound), sep="", end="", flush=True)
        free = SimpleQueue[tuple[Path, int]]()
        for copy in copies:
            free.put(copy)

        def prove(one: Mutant) -> bool:
            copy, begun = free.get(), time.monotonic()
            try:
                came = verdict(one, *copy)
            finally:
                free.put(copy)
            print(f"{came:<15} {time.monotonic() - begun:3.0f} s  {one.path.stem:<28} {one.what}", flush=True)
            return came == "noticed"

        with ThreadPoolExecutor(AT_ONCE) as pool:
            are_noticed = list(pool.map(prove, known))
    sys.exit(0 if all(are_noticed) and not unsound else 1)


if __name__ == "__main__":
    main()
