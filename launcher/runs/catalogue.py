"""Which jobs, profiles and templates there are. A user's own come first, by name: working directory, ~/.config/launch/, ours."""

from __future__ import annotations

from pathlib import Path

from launcher.resources import data_folder


def user_folder() -> Path:
    """Return ~/.config/launch."""
    return Path.home() / ".config" / "launch"


def files(noun: str) -> dict[str, Path]:
    """Return the TOML files of `profiles` or `jobs` by name."""
    found: dict[str, Path] = {}
    for folder in (data_folder(noun), user_folder() / noun, Path(noun)):
        if folder.is_dir():
            found.update({path.stem: path for path in sorted(folder.glob("*.toml"))})
    return dict(sorted(found.items()))


def file(noun: str, name: str) -> Path:
    """Return the file of this name in `images`: the working directory's, the user's, or ours.

    Raises FileNotFoundError when ours is missing too: a broken installation.
    """
    for folder in (Path(noun), user_folder() / noun):
        if (folder / name).is_file():
            return folder / name
    return data_folder(noun) / name
