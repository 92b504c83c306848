"""The files of ssh's configuration: the user's, the system's, and their includes.

`ssh_lookup.py` asks ssh itself for the meaning of a name.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
MAX_INCLUDES = 16
"""The maximum depth of includes, as in ssh."""
_INCLUDE = re.compile(r"""^[ \t]*"?include"?[ \t=]+(.*)$""", re.IGNORECASE | re.MULTILINE)


def texts() -> dict[str, str | None]:
    """Return the text of each file by its path, None for an unreadable one.

    The user's and the system's file may be missing.
    """
    found: dict[str, str | None] = {}
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        path = os.path.expanduser(file)
        _read(path, os.path.dirname(path), MAX_INCLUDES, found)
    return found


def _read(path: str, folder: str, depth: int, found: dict[str, str | None]) -> None:
    """Add a file and its includes. A relative path starts at the folder of the first file."""
    if path in found:
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = found[path] = file.read()
    except FileNotFoundError:
        return
    except OSError:
        found[path] = None
        return
    for written in _INCLUDE.findall(text) if depth else ():
        for word in written.split():
            for name in sorted(glob.glob(os.path.join(folder, os.path.expanduser(word.strip('"'))))):
                _read(name, folder, depth - 1, found)


def names_and_patterns() -> tuple[list[str], list[str]]:
    """Return the plain names and the patterns of the `Host` lines. The pattern `*` is left out."""
    words = dict.fromkeys(word for key, words in _lines(texts()) if key == "host" for word in words)
    plain = [word for word in words if not re.search(r"[*?!]", word)]
    return plain, [word for word in words if word not in plain and word != "*" and not word.startswith("!")]


def _lines(read: Mapping[str, str | None]) -> Iterator[tuple[str, list[str]]]:
    """Yield the keyword and the words of each line, without quotes."""
    for text in read.values():
        for line in (text or "").splitlines():
            key, *words = re.split(r"[\s=]+", line.strip().replace('"', ""))
            yield key.lower(), words
