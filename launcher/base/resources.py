"""Find the data that is installed with the package: profiles/, jobs/ and images/."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def data_folder(name: str) -> Path:
    """Return the package's folder `profiles`, `jobs` or `images`.

    The folders are inside the package in a wheel, beside it in a checkout. Raises FileNotFoundError for a
    broken installation, which has neither.
    """
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is missing beside {_PACKAGE}: reinstall launcher")
