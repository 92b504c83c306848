"""What the testbed makes once and keeps in `.testbed/`: a base image, the wheels that a training image installs, the demo.

Whoever comes first makes it, under a lock; others wait for it. `LAUNCH_TESTBED_CACHE` names another folder, for several
checkouts that share one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.missing_part import MissingPartError

REPOSITORY = Path(__file__).resolve().parents[2]
CONSTRAINTS = REPOSITORY / "constraints.txt"
SUITE = "bookworm"
PYTHON = "3.11"  # what that suite has, and so what the wheels must fit
PACKAGES = ("python3", "python3-pip", "python3-venv", "ca-certificates", "tini")
REQUIREMENTS = (
    "torch==2.13.0",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
)  # this torch has a wheel without CUDA's GBs
# No container reads these, and they are half of the image.
_DROPPED = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)

Say = Callable[[str], object]


def folder() -> Path:
    """Where it is kept."""
    path = Path(os.environ.get("LAUNCH_TESTBED_CACHE") or REPOSITORY / ".testbed")
    path.mkdir(parents=True, exist_ok=True)
    return path


def base_image(say: Say = print) -> Path:
    """Return the tar of a small Debian with Python, pip, venv and tini. Raises MissingPartError."""
    recipe = "\n".join([SUITE, *PACKAGES, *_DROPPED])
    with _kept(f"base-{_digest(recipe)}.tar") as (tar, is_there):
        if not is_there:
            _make_base(tar, say)
    return tar


def wheelhouse(say: Say = print) -> Path:
    """Return a folder with the wheels of REQUIREMENTS and all that they need. Raises MissingPartError."""
    recipe = "\n".join([PYTHON, *REQUIREMENTS, CONSTRAINTS.read_text()])
    with _kept(f"wheels-{_digest(recipe)}") as (wheels, is_there):
        if not is_there:
            _fill_wheelhouse(wheels, say)
    return wheels


def demo_parts(say: Say = print) -> Path:
    """Return a cache folder with the demo's model and data, as `jobs/demo.py` makes them. Raises MissingPartError."""
    program = REPOSITORY / "jobs" / "demo.py"
    recipe = f"{program.read_text()}\n{CONSTRAINTS.read_text()}"
    with _kept(f"demo-{_digest(recipe)}") as (cache, is_there):
        if not is_there:
            say("making the demo, once: half a minute of one core")
            part = cache.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _make(sys.executable, str(program), str(part))
            part.rename(cache)
    return cache


def kaggle_cli(version: str, say: Say = print) -> Path:
    """Return the Python of an environment with the official Kaggle CLI. Raises MissingPartError.

    It imports `six`, and versions 2.2.4 and 2.2.5 do not say so.
    """
    recipe = f"{sys.version}\nkaggle=={version} six"
    with _kept(f"kaggle-{version}-{_digest(recipe)}") as (environment, is_there):
        if not is_there:
            say(f"installing kaggle {version}, once: 60 MB")
            shutil.rmtree(environment, ignore_errors=True)
            try:
                _make(sys.executable, "-m", "venv", str(environment))
                python = str(environment / "bin" / "python")
                _make(python, "-m", "pip", "install", "--quiet", f"kaggle=={version}", "six")
            except MissingPartError:
                shutil.rmtree(
                    environment, ignore_errors=True
                )  # half of it is none; it cannot be made elsewhere
                raise
    return environment / "bin" / "python"


@contextmanager
def _kept(name: str) -> Iterator[tuple[Path, bool]]:
    """Hold the lock of one kept thing; give its path and whether it is there."""
    path = folder() / name
    with (folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path, path.exists()


def _make_base(tar: Path, say: Say) -> None:
    if os.geteuid() != 0:
        raise MissingPartError("a base image is made by root")
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        raise MissingPartError("no debootstrap here: apt-get install debootstrap")
    say(f"making the base image, once: debootstrap {SUITE}, about a minute")
    with tempfile.TemporaryDirectory(prefix="launch-testbed-") as scratch:
        root = Path(scratch) / "root"
        packages = f"--include={','.join(PACKAGES)}"
        _make("debootstrap", "--variant=minbase", packages, SUITE, str(root))
        for name in _DROPPED:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir()
        part = tar.with_suffix(".part")
        _make("tar", "-C", str(root), "-c", "-f", str(part), ".")
        part.rename(tar)
    say(f"the base image is made: {tar.stat().st_size / 1e6:.0f} MB")


def _fill_wheelhouse(wheels: Path, say: Say) -> None:
    say(f"filling the wheelhouse, once: {' '.join(REQUIREMENTS)}")
    part = wheels.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    index = os.environ.get("TORCH_INDEX")
    _make(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(part)),
        *("--only-binary", ":all:", "--python-version", PYTHON, "-c", str(CONSTRAINTS)),
        *(("--extra-index-url", index) if index else ()),
        *REQUIREMENTS,
    )
    part.rename(wheels)
    size = sum(path.stat().st_size for path in wheels.iterdir())
    say(f"the wheelhouse is filled: {len(list(wheels.iterdir()))} wheels, {size / 1e6:.0f} MB")


def _make(*words: str) -> None:
    """Run what makes it. Raises MissingPartError: without it (no mirror, no index) the testbed lacks a part."""
    said = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=1200
    )
    if said.returncode != 0:
        raise MissingPartError(f"{words[0]} did not work: {(said.stdout + said.stderr)[-500:]}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
