"""Which jobs and profiles there are. A user's own come first, by name: working directory, ~/.config/launch/, ours."""

from __future__ import annotations

from pathlib import Path

from launcher.resources import data_folder


def user_folder() -> Path:
    """Return ~/.config/launch."""
    return Path.home() / ".config" / "launch"


def files(noun: str, pattern: str = "*.toml") -> dict[str, Path]:
    """Return the files of `profiles`, `jobs` or `images` by name."""
    found: dict[str, Path] = {}
    for folder in (data_folder(noun), user_folder() / noun, Path(noun)):
        if folder.is_dir():
            found.update({path.stem: path for path in sorted(folder.glob(pattern))})
    return dict(sorted(found.items()))
