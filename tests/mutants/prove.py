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
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent


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


def is_noticed(mutant: Mutant, folder: Path) -> bool:
    """Whether the test that a mutant names fails in a copy. Raises RuntimeError where it did not run at all."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "not gpu",  # a long test proves as well
        mutant.test,
    ]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> None:
    """Prove all mutants, or those that are named; exit 1 unless each is noticed, and by no fault of its test."""
    wanted = sys.argv[1:]
    known = [one for one in mutants() if not wanted or one.path.stem in wanted]
    if unknown := set(wanted) - {one.path.stem for one in known}:
        sys.exit(
            f"no mutant {', '.join(sorted(unknown))}; there are: {' '.join(one.path.stem for one in mutants())}"
        )
    failed = False
    with tempfile.TemporaryDirectory(prefix="launch-mutants-") as name:
        folder = copy_to(Path(name))
        for test in dict.fromkeys(one.test for one in known):
            sound = next(one for one in known if one.test == test)
            if is_noticed(sound, folder):
                failed = True
                print(f"FAILS WITHOUT   {test}", flush=True)
        for one in known:
            if not applies(one, folder):
                verdict = "DOES NOT APPLY"
            else:
                verdict = "noticed" if is_noticed(one, folder) else "NOT NOTICED"
                applies(one, folder, undo=True)
            failed = failed or verdict != "noticed"
            print(f"{verdict:<15} {one.path.stem:<28} {one.what}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
