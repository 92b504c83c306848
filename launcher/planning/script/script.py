"""Find the script of a command: the file or module below the code folder that the command starts."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PYTHON = re.compile(r"python[0-9.]*")
_SHELLS = ("sh", "bash", "dash", "zsh")
_STARTERS = ("torchrun", "accelerate", "deepspeed")
"""Programs that start a Python script for each card."""
STARTER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_NOT_A_SCRIPT = ("-m", "--module", "--no-python", "--no_python")
_SHELL_SUFFIXES = (".sh", ".bash", ".zsh")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")
_WITHOUT_PYTHONPATH = {"E", "I", "S"}  # -E and -I ignore PYTHONPATH; -S does not import sitecustomize from it
_PYTHON_OPTIONS = re.compile(r"-[bBdEiIOPqsSuvx]*[WX](.*)", re.DOTALL)
_SHELL_FLAGS = re.compile(r"-[abefhiklmnprtuvxBCEHPT]+|--(login|norc|noprofile|posix|restricted|verbose)")
_SHELL_OPTIONS = ("-o", "-O", "+o", "+O", "-eo", "-ueo", "-euo", "-exo", "-euxo")


class Script(NamedTuple):
    """A path below the code folder, or a module as `pkg.mod`; `is_program` if the file itself is executed."""

    path: str
    is_program: bool = False
    is_module: bool = False


def leading_assignments(command: Sequence[str]) -> int:
    """Return the number of shell assignments at a command's start: `FOO=1 python train.py` has 1."""
    return sum(1 for _ in itertools.takewhile(_ASSIGNMENT.fullmatch, command))


def script_of(command: Sequence[str]) -> Script | None:
    """Return the script that a command starts; None if it starts none, or if its words do not show which.

    An absolute path gives None too, because that file is on the host, not in the code folder.
    """
    program, *words = command[leading_assignments(command) :] or ("",)
    name = posixpath.basename(program)
    found: Script | None = None
    if name == "env":
        rest = words[leading_assignments(words) :]
        return script_of(rest) if rest and not rest[0].startswith("-") else None
    if _PYTHON.fullmatch(name):
        found = _of_python(words)
    elif name in _SHELLS:
        found = _of_shell(words)
    elif name in _STARTERS and (name != "accelerate" or words[:1] == ["launch"]):
        found = _of_starter(words)
    elif "/" in program:
        found = Script(program, is_program=True)
    if found is None or found.path.startswith(("/", "~")):
        return None
    return found if found.is_module else found._replace(path=posixpath.normpath(found.path))


def starts_python(command: Sequence[str]) -> bool:
    """Return whether a command visibly starts a Python that uses PYTHONPATH.

    A shell script, or another program, may start Python too, which the command does not show.
    """
    program, *words = command[leading_assignments(command) :] or ("",)
    name = posixpath.basename(program)
    if name == "env":
        return bool(words) and starts_python(words)
    flags = itertools.takewhile(_PYTHON_FLAGS.fullmatch, words)
    if _PYTHON.fullmatch(name):
        return not any(set(flag) & _WITHOUT_PYTHONPATH for flag in flags)
    return name in _STARTERS or name.endswith(".py")


def interpreter_of(command: Sequence[str]) -> Script | None:
    """Return the interpreter of a command if it is a path below the code folder, like `.venv/bin/python`."""
    program = next(iter(command[leading_assignments(command) :]), "")
    is_relative = "/" in program and not program.startswith(("/", "~"))
    name = posixpath.basename(program)
    if not is_relative or not (_PYTHON.fullmatch(name) or name in (*_SHELLS, *_STARTERS)):
        return None
    return Script(posixpath.normpath(program), is_program=True)


def by_torchrun(command: Sequence[str]) -> str:
    """Return the torchrun command that starts a command's script once per card; empty if torchrun cannot start it."""
    script = script_of(command)
    if script is None:
        return ""
    return f"torchrun {'-m ' if script.is_module else ''}{script.path} …"


def _of_python(words: Sequence[str]) -> Script | None:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-m":
            return _of_module(rest)
        option = _PYTHON_OPTIONS.fullmatch(word)
        if option and not option[1]:
            rest = rest[1:]  # its value
        elif not option and not _PYTHON_FLAGS.fullmatch(word):
            return None  # `-c` with the program's text, or an unknown option
    return Script(rest[0]) if rest else None


def _of_module(words: Sequence[str]) -> Script | None:
    if not words:
        return None
    if words[0] in STARTER_MODULES:
        return _of_starter(words[1:])
    return Script(words[0], is_module=True) if re.fullmatch(r"\w+(\.\w+)*", words[0]) else None


def _of_starter(words: Sequence[str]) -> Script | None:
    """Return the first word that is a Python file. Options are not parsed, because they differ between releases."""
    for word in words:
        if word in _NOT_A_SCRIPT:
            return None
        if word.endswith(".py") and not word.startswith("-"):
            return Script(word)
    return None


def _of_shell(words: Sequence[str]) -> Script | None:
    rest = list(words)
    while rest and rest[0].startswith(("-", "+")):
        word = rest.pop(0)
        if word in _SHELL_OPTIONS:
            rest = rest[1:]  # its value
        elif not _SHELL_FLAGS.fullmatch(word):
            return None  # `-c`, or an unknown option
    # A name without a slash may be a program in PATH.
    return Script(rest[0]) if rest and ("/" in rest[0] or rest[0].endswith(_SHELL_SUFFIXES)) else None
