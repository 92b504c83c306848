"""The files of ssh's configuration: the user's, the system's, and those that they include. What a name means there, ssh itself says (`ssh_config.py`)."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
MOST_INCLUDES = 16
"""How deep files may include others, as in ssh."""
_INCLUDE = re.compile(r"""^[ \t]*"?include"?[ \t=](.*)$""", re.IGNORECASE | re.MULTILINE)
_ODD = re.compile(r"[%\"'\\\[]")
"""Letters in a path that ssh may read in another way than `glob`."""
_UNSETTLED = {"exec", "localnetwork", "canonical"}
"""The kinds of `Match` that do not follow from files and words alone: they ask a program, the network, or DNS."""


def texts() -> dict[str, str]:
    """Return the text of each file by its path; an unreadable file counts as missing."""
    found: dict[str, str] = {}
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        path = os.path.expanduser(file)
        _read(path, os.path.dirname(path), MOST_INCLUDES, found)
    return found


def _read(path: str, folder: str, depth: int, found: dict[str, str]) -> None:
    """Add a file, and what it includes: a relative path is one below the folder of the file that ssh reads first."""
    if path in found:
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found[path] = file.read()
    except OSError:
        return
    for written in _INCLUDE.findall(found[path]) if depth else ():
        for word in _words(written.strip()):
            for name in sorted(glob.glob(os.path.join(folder, os.path.expanduser(word.strip('"'))))):
                _read(name, folder, depth - 1, found)


def names_and_patterns() -> tuple[list[str], list[str]]:
    """Return the plain names and the patterns of the `Host` lines; the pattern `*` is left out."""
    words = dict.fromkeys(word for key, words in _lines(texts()) if key == "host" for word in words)
    plain = [word for word in words if not re.search(r"[*?!]", word)]
    return plain, [word for word in words if word not in plain and word != "*" and not word.startswith("!")]


def runs_programs() -> bool:
    """Whether a `Match exec` runs a program when a name is looked up."""
    return any(key == "match" and "exec" in _kinds(words) for key, words in _lines(texts()))


def are_settled(read: Mapping[str, str]) -> bool:
    """Whether what ssh says of a name follows from these files, and from how it is called, alone.

    It does not if an `Include` may lead ssh to other files than us: by letters that it reads in its own way, or by a relative path
    in any other file than the user's own.
    """
    own = os.path.expanduser(USER_CONFIG)
    for path, text in read.items():
        included = [written for line in _INCLUDE.findall(text) for written in _words(line.strip())]
        if any(_ODD.search(written) or not (path == own or written.startswith("/")) for written in included):
            return False
    return not any(
        (key == "match" and _UNSETTLED & _kinds(words))
        or key.startswith("canonical")
        or any("$" in word for word in words)
        for key, words in _lines(read)
    )


def _kinds(words: list[str]) -> set[str]:
    """Return the kinds of condition in a `Match` line, and what else stands there."""
    return {word.lower().lstrip("!") for word in words}


def _lines(read: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the keyword and the words of each line."""
    for text in read.values():
        for line in text.splitlines():
            key, *words = (word.strip('"') for word in _words(line.strip()))
            yield key.lower(), words


def _words(written: str) -> list[str]:
    return re.split(r"[\s=]+", written)
