"""The Python of `make gpu`: what it must have, and an environment from a folder of wheels if something lacks.

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

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".gpu"
"""The environment from wheels, and the files of rehearsals. git ignores it."""
FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis")
"""What the tests that are marked `gpu` need of the extra `dev`."""


class UnfitError(Exception):
    """`make gpu` cannot run here; the message is one line."""


def requirements() -> list[str]:
    """Return what must be installed: our dependencies, those of a training, and those of the tests."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [requirement for requirement in extras["dev"] if _name(requirement) in FOR_TESTS]
    return [*project["dependencies"], *extras["train"], *tests]


def lacking(required: list[str]) -> list[str]:
    """Return those requirements that this Python does not meet."""
    return [requirement for requirement in required if not _is_met(requirement)]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _is_met(requirement: str) -> bool:
    try:
        version = importlib.metadata.version(_name(requirement))
    except importlib.metadata.PackageNotFoundError:
        return False
    try:
        from packaging.requirements import Requirement
    except ImportError:  # one of the requirements: it is lacking itself
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)


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
        raise UnfitError(f"WHEELS={wheels} is not a folder")
    return _filled(FOLDER / "venv", required, wheels)


def _filled(folder: Path, required: list[str], wheels: str) -> str:
    """Make an environment that also sees this Python's packages, and fill it without a network."""
    python = str(folder / "bin" / "python")
    shutil.rmtree(folder, ignore_errors=True)
    has_pip = importlib.util.find_spec("pip") is not None
    venv = [sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(folder)]
    run_ok(venv, "no environment could be made")
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = run_ok(where, "the environment does not work").strip()
    # `--system-site-packages` would show the base Python's packages, not those of an environment that this one is.
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(packages) / "outer.pth").write_text("".join(f"{path}\n" for path in ours))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels, *required]
    run_ok(pip, f"pip could not install from {wheels}")
    return python


def run_ok(words: list[str], trouble: str) -> str:
    """Run a command, and return what it prints. Raises UnfitError, which names the trouble and its last line, if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UnfitError(f"{trouble}: {last}")
    return done.stdout


def variables(folder: Path) -> dict[str, str]:
    """Return the variables of a part that works in `folder`.

    Our own packages are found. The card is the first one, as nvidia-smi counts. Every process of the part names its folder, by
    which it is found and ended.
    """
    paths = [str(REPOSITORY), str(REPOSITORY / "launcher" / "worker"), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUSERBASE": site.getuserbase(),  # a client of a part has a home of its own
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "TMPDIR": str(folder),
    }
    return {**os.environ, **own}
