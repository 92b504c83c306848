"""Read TOML that people write, as plain tables. Without pydantic, so that listing names is quick."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from launcher.errors import BadFileError


def read_text(path: Path) -> str:
    """Read a file that people write. Raises BadFileError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Read a TOML file; return its tables and its text.

    Raises BadFileError when it cannot be read or is not TOML.
    """
    text = read_text(path)
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise BadFileError(f"{path}: is not TOML: {error}") from error
