"""Find jobs, profiles and templates by name: in the working directory, then the user's folder, then the installation.

The user's folder is `~/.config/launch`, on Linux and on macOS alike: one folder can be kept in version
control and copied between machines. With `XDG_CONFIG_HOME` set it is `$XDG_CONFIG_HOME/launch`.
"""

from __future__ import annotations

from pathlib import Path

from launcher.base.resources import data_folder


def user_folder() -> Path:
    """Return the folder of the user's hosts, jobs, profiles and templates."""
    from platformdirs.unix import Unix  # `launch --help` starts without it

    return Unix("launch").user_config_path


def user_folder_text() -> str:
    """Return the user's folder as messages name it: `~/.config/launch`, or the path from XDG_CONFIG_HOME."""
    folder, home = user_folder(), Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def files(noun: str) -> dict[str, Path]:
    """Return the TOML files of `profiles` or `jobs` by name."""
    paths: dict[str, Path] = {}
    for folder in (data_folder(noun), user_folder() / noun, Path(noun)):
        if folder.is_dir():
            paths.update({path.stem: path for path in sorted(folder.glob("*.toml"))})
    return dict(sorted(paths.items()))


def file(noun: str, name: str) -> Path:
    """Return the file of this name in `images`: the working directory's, the user's, or the installed one.

    Raises FileNotFoundError if the installed file is missing too, which is a broken installation.
    """
    for folder in (Path(noun), user_folder() / noun):
        if (folder / name).is_file():
            return folder / name
    return data_folder(noun) / name
