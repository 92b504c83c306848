"""Find the folders of this client's local copies."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from launcher.base.whole_file import sync
from launcher.copy.run_files import RunFiles
from launcher.copy.run_id import RUN_ID
from launcher.errors import UsageError


def runs_folder() -> Path:
    """Return the runs folder: $LAUNCH_RUNS, else `runs` in the working directory.

    Raises UsageError if the folder, or one above it, is a file. Raises UsageError also if `runs` is a link, which
    may come from a cloned repository; to use the link, a user sets $LAUNCH_RUNS to its target. Raises
    FileNotFoundError if the working directory has been removed.
    """
    named = os.environ.get("LAUNCH_RUNS")
    try:
        folder = Path(named or "runs").resolve()
    except FileNotFoundError:
        raise  # the working directory has been removed
    except OSError as error:
        raise UsageError(f"{(named or 'runs')[:80]}: {error.strerror}") from error
    if not named and os.path.islink("runs"):
        raise UsageError(
            f"{Path.cwd() / 'runs'} is a link, which is not followed\n"
            f"  if it is yours   export LAUNCH_RUNS={shlex.quote(str(folder))}"
        )
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise UsageError(
            f"{existing} is not a folder, so runs cannot be kept in {folder}\n"
            "  name another folder   LAUNCH_RUNS=FOLDER"
        )
    return folder


def folder_with(run: str, others: Iterable[str]) -> Path:
    """Return the folder of a run's local copy: this command's runs folder, else the first of `others` that has it.

    If none has one, return the runs folder, where the local copy will be made. With $LAUNCH_RUNS set, only
    that folder counts.
    """
    here = runs_folder()
    if "LAUNCH_RUNS" in os.environ or RunFiles(here / run).is_folder():
        return here
    folders = (Path(one) for one in others if os.path.realpath(one) == one)  # it may have become a link
    return next((one for one in folders if RunFiles(one / run).is_folder()), here)


def make_runs_folder(folder: Path) -> None:
    """Make a runs folder durably unless it exists. Its .gitignore keeps it from being committed or sent.

    Raises OSError.
    """
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    sync(folder, folder.parent)


def ids_here() -> list[str]:
    """Return the sorted ids of the runs with a local copy in this command's runs folder, foreign ones included."""
    folder = runs_folder()
    try:
        return sorted(filter(RUN_ID.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from error
