"""Suggestions for an unknown command: names from other tools, misspellings, and words in the wrong order."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence

_VERBS = {
    "status": ("launch ps", "launch attach RUN"),
    "list": ("launch ps", "launch hosts"),
    "queue": ("launch ps --state reserved", "launch hosts"),
    "squeue": ("launch ps", "launch ps --state reserved     only those whose job waits"),
    "sinfo": ("launch probe --host HOST", "launch hosts"),
    "sacct": ("launch ps", "launch explain RUN"),
    "jobs": ("launch ps",),
    "top": ("launch hosts", "launch metrics last"),
    "ssh": ("launch shell RUN", "launch exec RUN -- COMMAND"),
    "tunnel": ("launch forward RUN PORT",),
    "port-forward": ("launch forward RUN PORT",),
    "kill": ("launch stop --now RUN",),
    "cancel": ("launch stop RUN",),
    "scancel": ("launch stop RUN",),
    "down": ("launch stop RUN",),
    "delete": ("launch rm RUN",),
    "remove": ("launch rm RUN",),
    "clean": ("launch gc --host HOST", "launch sweep --host HOST"),
    "log": ("launch logs RUN",),
    "tail": ("launch logs RUN -f",),
    "follow": ("launch attach RUN",),
    "watch": ("launch attach RUN",),
    "show": ("launch explain RUN", "launch ps"),
    "download": ("launch pull RUN",),
    "get": ("launch pull RUN",),
    "fetch": ("launch pull RUN",),
    "scp": ("launch cp RUN:PATH DEST",),
    "retry": ("launch rerun RUN", "launch resume RUN"),
    "restart": ("launch rerun RUN", "launch resume RUN"),
    "continue": ("launch resume RUN",),
    "start": ("launch --host HOST -- python train.py",),
    "sbatch": ("launch --host HOST -- python train.py",),
    "srun": ("launch --host HOST -- python train.py", "launch exec RUN -- COMMAND"),
    "salloc": ("launch shell RUN",),
    "submit": ("launch --detach --host HOST -- python train.py",),
    "train": ("launch --host HOST -- python train.py",),
    "up": ("launch --host HOST -- python train.py",),
    "check": ("launch --dry-run", "launch doctor"),
    "plan": ("launch --dry-run", "launch explain"),
    "gpus": ("launch hosts", "launch probe --host HOST"),
    "config": ("launch hosts", "launch profile list"),
    "version": ("launch --version",),
    "help": ("launch --help",),
}
"""Command names of other tools, and the matching commands of launch."""


_EXTRA = """--set 'slurm.extra=["{}"]'"""
_OF_SBATCH = {
    **{
        f"--{key}": f"--set slurm.{key}=…"
        for key in ("partition", "account", "qos", "time", "nodes", "gres", "constraint", "reservation")
    },
    "--array": "launch batch FILE     a batch is a file of runs, see   launch batch --help",
    "--cpus-per-task": _EXTRA.format("--cpus-per-task=8"),
    "--mem": _EXTRA.format("--mem=64G"),
    "--dependency": _EXTRA.format("--dependency=afterok:12"),
    "--exclusive": _EXTRA.format("--exclusive"),
    "--mail-type": _EXTRA.format("--mail-type=END"),
    "--job-name": "--name NAME",
    "--output": "launch logs RUN",
    "--gpus-per-node": "--gpus NUMBER",
}
"""Options of `sbatch`, and the equivalent options of launch."""


def of_sbatch(option: str) -> str | None:
    """Return launch's equivalent of an option of `sbatch`; None for any other option."""
    return _OF_SBATCH.get(option)


def tip(word: str, more: list[str], verbs: Iterable[str], takes_value: Mapping[str, bool]) -> str:
    """Return the message for a first word that is not a command: its likely meaning, and the commands to type.

    `takes_value` has the options of a launch, and whether a value follows.
    """
    if commands := _VERBS.get(word):
        return _message(word, commands)
    if word.endswith(".toml"):
        return _message(word, (f"launch --job {shlex.quote(word)}",))
    if script := _as_script(word, more):
        options, own = _split(more, takes_value)
        said = f"{word} is not a verb of launch; a command for the host goes after --"
        if not options:
            return f"{said}\n  next   launch -- {script}"
        next_words = f"launch {shlex.join(options)} -- {_as_script(word, own)}"
        return f"{said}\n  next   {next_words}\n     or  launch -- {script}     if the script has an option {options[0]}"
    if named := _by_name(word):
        return _message(word, named)
    if begun := sorted(verb for verb in verbs if verb.startswith(word)):
        return _message(word, (f"launch {shlex.join([verb, *more])}" for verb in begun))
    swapped = [verb for verb in verbs if sorted(verb) == sorted(word)]
    if close := swapped or difflib.get_close_matches(word, [*verbs, *_VERBS], n=1, cutoff=0.6):
        if close[0] in _VERBS:
            return _message(word, _VERBS[close[0]])
        return f"{word} is not a verb of launch: did you mean '{close[0]}'?\n  next   launch {shlex.join([close[0], *more])}"
    return _message(word, ("launch --help", f"launch -- {shlex.join([word, *more])}"))


def tip_for_extra(path: str, words: list[str], extra: list[str], *, can_choose_host: bool) -> str:
    """Return the message for words after a command that it does not take; one of them may be a host without `--host`."""
    first, *others = extra
    said = f"{path}: unexpected word{'s' * bool(others)}: {' '.join(extra)}"
    see = f"  see   {path} --help"
    if others:
        return f"{said}\n{see}"
    if not can_choose_host:
        return f"{said}\n  that host   launch probe --host {first}" if _is_host(first) else f"{said}\n{see}"
    place = words.index(first)
    command = shlex.join([*path.split(), *words[:place], "--host", *words[place:]])
    if _is_host(first):
        return f"{said}\n  next   {command}"
    return f"{said}\n  if it is a host   {command}\n{see}"


def tip_for_stray(words: list[str]) -> str:
    """Return the message for words among the options of a launch: a command without `--`, a verb, or a host."""
    first, *more = words
    said = f"unexpected word{'s' * bool(more)}: {shlex.join(words)}"
    if _is_host(first):
        return f"{said}\n  next   launch --host {first} …"
    command = _as_script(first, more) or shlex.join(words)
    return "\n".join(
        [
            said,
            f"  a command for the host goes after --, with its options   launch … -- {command}",
            "  a verb comes first                                       launch ps --host HOST",
        ]
    )


def _is_host(word: str) -> bool:
    """Return whether a word is a host's name, or an address such as `me@lab`."""
    from launcher.config.lookup import Lookup, implicit_names
    from launcher.errors import LaunchError

    try:
        return "@" in word or word in (*Lookup().names, *implicit_names())
    except LaunchError:  # a user's file is invalid; the correct command will report it
        return False


def _message(word: str, commands: Iterable[str]) -> str:
    first, *others = commands
    return "\n".join(
        [f"{word} is not a verb of launch", f"  next   {first}", *(f"     or  {one}" for one in others)]
    )


def _split(words: Sequence[str], takes_value: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return the options of a launch among some words, with their values, and the other words."""
    options: list[str] = []
    others: list[str] = []
    waiting = iter(words)
    for word in waiting:
        name, has_equals, _ = word.partition("=")
        if name not in takes_value:
            others.append(word)
            continue
        options.append(word)
        if takes_value[name] and not has_equals:
            options += [value for value in [next(waiting, None)] if value is not None]
    return options, others


def _as_script(word: str, more: list[str]) -> str | None:
    """Return the command to run on the host, if the word is a script or a program; else None."""
    if word.endswith((".py", ".sh")):
        program = "python" if word.endswith(".py") else "bash"
        return shlex.join([program, word, *more])
    is_program = more and shutil.which(word) is not None
    if is_program or word in ("python", "python3", "torchrun", "accelerate", "bash") or os.path.isfile(word):
        return shlex.join([word, *more])
    return None


def _by_name(word: str) -> tuple[str, ...]:
    """Return the commands for a word that names a host, a profile, a job or a run."""
    from launcher.errors import LaunchError

    try:
        return tuple(_named(word))
    except LaunchError:  # a user's file is invalid; the correct command will report it
        return ()


def _named(word: str) -> Iterable[str]:
    from launcher.config.catalogue import files
    from launcher.copy.local_copy import run_ids

    if _is_host(word):
        yield f"launch --host {word}"
    if word in files("profiles"):
        yield f"launch --profile {word}"
    if word in files("jobs"):
        yield f"launch --job {word}"
    if any(run == word or run.rpartition("-")[2] == word for run in run_ids()):
        yield f"launch attach {word}"
