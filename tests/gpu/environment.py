"""The Python of `make gpu`, and the card: what is there, and an environment from a folder of wheels if something lacks.

Only the standard library is imported here, because nothing else may be there yet.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".gpu"
"""The environment from wheels, and the files of rehearsals. git ignores it."""
FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis")
"""What the tests that are marked `gpu` need of the extra `dev`."""


class UnfitError(Exception):
    """`make gpu` cannot run here; the message is one line."""


class Card(NamedTuple):
    """The card, as nvidia-smi reports it."""

    name: str
    driver: str
    capability: str
    memory_mib: int


def requirements() -> list[str]:
    """Return what must be installed: our dependencies, those of a training, and those of the tests."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [one for one in extras["dev"] if _name(one) in FOR_TESTS]
    return [*project["dependencies"], *extras["train"], *tests]


def lacking(required: list[str]) -> list[str]:
    """Return the names of those that this Python does not have, in any version."""
    return [name for name in map(_name, required) if not _is_installed(name)]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def python_with(required: list[str], wheels: str | None) -> str:
    """Return a Python that has these packages: this one, else one of an environment that is filled from `wheels`.

    What this Python has, such as a torch for the card, the environment has too. Raises UnfitError.
    """
    missing = lacking(required)
    if not missing:
        return sys.executable
    if wheels is None:
        raise UnfitError(
            f"this Python lacks {', '.join(missing)}: make gpu WHEELS=FOLDER installs from a folder of wheels"
        )
    if not Path(wheels).is_dir():
        raise UnfitError(f"WHEELS={wheels} is no folder")
    return _filled(FOLDER / "venv", required, wheels)


def _filled(folder: Path, required: list[str], wheels: str) -> str:
    """Make an environment that also sees this Python's packages, and fill it without a network."""
    python = str(folder / "bin" / "python")
    shutil.rmtree(folder, ignore_errors=True)
    has_pip = importlib.util.find_spec("pip") is not None
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(folder)])
    packages = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # `--system-site-packages` would show the base Python's packages, not those of an environment that this one is.
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(packages) / "outer.pth").write_text("".join(f"{path}\n" for path in ours))
    _run([python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels, *required])
    return python


def _run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UnfitError(f"{' '.join(words[:4])} … failed: {last}")
    return done.stdout


def find_card() -> Card:
    """Return the first card. Raises UnfitError without one."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,compute_cap,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
        answer = done.stdout if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    card = read_card(answer)
    if card is None:
        raise UnfitError("there is no NVIDIA card here: REHEARSE=1 make gpu tries the same parts on the CPU")
    return card


def read_card(answer: str) -> Card | None:
    """Read the first line that describes a card; None if there is none."""
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[3].isdigit():
            return Card(*cells[:3], int(cells[3]))
    return None


def variables() -> dict[str, str]:
    """Return the variables of a part, in which our own packages are found."""
    paths = [str(REPOSITORY), str(REPOSITORY / "launcher" / "worker"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUSERBASE": site.getuserbase(),  # a client of a part has a home of its own
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own}
