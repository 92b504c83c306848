"""Describe why a command could not be started: the cause, and the command to type instead."""

from __future__ import annotations

import difflib
import os
import re
from typing import Iterator, NamedTuple, Optional

from .cause_text import CauseText

CONTAINERS = "apptainer"
"""The program that starts the command of a run in an image of its cluster."""
_FATAL = re.compile(r"^(?:\x1b\[\d+m)?FATAL: *(?:\x1b\[0m)? *(\S.*)", re.MULTILINE)
_MISSING = re.compile(r"\"(.+)\": executable file not found in \$PATH")
_CLOSE = 0.7
"""The least similarity, from 0 to 1, of a suggested name: `pyhton` and `python` are at 0.83."""


def words_of_start(program: str, error: OSError, code: str, path: str) -> CauseText:
    """Return why a program could not be started in the folder `code` with the search path `path`."""
    if "/" not in program:
        return _words_of_name(program, path)
    if isinstance(error, PermissionError):
        return CauseText(
            "'%s' is not executable" % program,
            "chmod +x %s, or name its interpreter: python %s" % (program, program),
        )
    first = _first_line(os.path.join(code, program))
    if first is None:
        return CauseText("the host has no '%s'" % program, "a relative path starts at the folder of the code")
    if not first.startswith("#!"):
        return CauseText(
            "'%s' does not begin with a line #!" % program, "name its interpreter: python %s" % program
        )
    return CauseText(
        "the first line of '%s' names an interpreter that the host does not have: %s" % (program, first),
        "name one that it has: python %s, or write   #!/usr/bin/env python3   there" % program,
    )


class ImageRefusal(NamedTuple):
    """Why Apptainer could not start a command in its image.

    `is_certain`: another attempt would end the same way.
    """

    words: CauseText
    is_certain: bool


def refusal_of_image(log: str) -> Optional[ImageRefusal]:
    """Return why Apptainer could not start a command, by its last error line; None if it printed none."""
    said = _FATAL.findall(log)
    if not said:
        return None
    missing = _MISSING.match(said[-1])
    if missing is not None:
        words = CauseText(
            "the image has no program '%s'" % missing[1],
            "name a program that it has, or an image that has it; python is the image's own python3, from 3.8 on",
        )
        return ImageRefusal(words, is_certain=True)
    if "could not open image" in said[-1]:
        words = CauseText(
            "the node cannot open the image",
            "image is the path of a file or folder that all nodes see, or a registry's name   docker://ORG/NAME:TAG",
        )
        return ImageRefusal(words, is_certain=True)
    words = CauseText(
        "%s could not start the command in the image" % CONTAINERS,
        "the line is %s's own; on a node   %s exec IMAGE python3 --version" % (CONTAINERS, CONTAINERS),
    )
    return ImageRefusal(words, is_certain=False)


def _words_of_name(program: str, path: str) -> CauseText:
    why = "the host has no program '%s'" % program
    if program == CONTAINERS:
        return CauseText(
            why, 'where it is a module of the cluster   modules = ["%s"]   in its table' % program
        )
    close = difflib.get_close_matches(program, sorted(set(_programs(path))), n=1, cutoff=_CLOSE)
    if close:
        return CauseText(why, "did you mean '%s'?" % close[0])
    return CauseText(
        why,
        "name one that it has, or a file with ./ before it; if pip installs it, add its package to the job's requirements",
    )


def _programs(path: str) -> Iterator[str]:
    for folder in path.split(os.pathsep):
        try:
            yield from os.listdir(folder or ".")
        except OSError:  # a folder of the search path need not exist
            continue


def _first_line(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return None
