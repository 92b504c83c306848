"""Finds the data that ships with the package: profiles/, jobs/ and images/."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Return our folder `profiles`, `jobs` or `images`.

    In a wheel the folders lie inside the package, in a checkout beside it.
    Raises FileNotFoundError when neither is there: a broken installation.
    """
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is missing beside {_PACKAGE}: reinstall launcher")
