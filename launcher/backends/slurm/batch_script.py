"""Read the `#SBATCH` lines of a job script that a command starts, as in `bash job.sbatch`.

    read_batch_script(("bash", "job.sbatch"), Path("project"))

`sbatch` itself would read them; launcher submits a script of its own, so it passes them on as `slurm.*` keys.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.base.bounded_read import read_bounded
from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build
from launcher.values.plan import Finding
from launcher.values.slurm_settings import FLAG_KEYS, SlurmSettings, reason_against

SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
MARK = "#SBATCH"
MAX_BYTES = 1_000_000
_LONG = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input", "k": "no-kill",
    "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""The short options of sbatch, and their names."""
_CARDS = ("gpus", "gpus-per-node")
_ONE = ("ntasks", "ntasks-per-node", "tasks-per-node")
_NAMES = ("job-name", "output", "error", "open-mode", "chdir", "export")
"""Options that need no word if they are left out: launcher names a job, keeps its log, and starts it in the run's folder."""


class BatchScript(NamedTuple):
    """A script with `#SBATCH` lines: its path as in the command, and what its lines ask for.

    `taken` are the options that became settings. `left_out` are the others, each with the reason.
    """

    path: str
    settings: SlurmSettings
    taken: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def words(self) -> str:
        """What was taken and left out, in one sentence."""
        left = f"; left out: {'; '.join(self.left_out)}" if self.left_out else ""
        return f"{self.path}: its {MARK} lines ask for {shlex.join(self.taken) or 'nothing'}{left}"


def read_batch_script(command: Sequence[str], folder: Path) -> BatchScript | None:
    """Return what the `#SBATCH` lines of a command's script ask for; None for a command without such lines.

    `folder` is the code folder. Raises BadFileError for a line that sbatch would refuse.
    """
    path = _script_of(command)
    try:
        text = "" if path is None else read_bounded(folder / path, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, BadFileError):  # the launch reports it
        return None
    if path is None or MARK not in text:
        return None
    values: dict[str, Any] = {}
    extra: list[str] = []
    taken: list[str] = []
    left_out: list[str] = []
    for number, name, value in _options(text, path):
        option = f"--{name}" if value is None else f"--{name}={value}"
        if name in _NAMES or (name in _ONE and value == "1"):
            continue
        if name in _CARDS and value is not None:
            values["gres"] = f"gpu:{value}"
        elif name in FLAG_KEYS and value is not None:
            values[name] = int(value) if name == "nodes" and value.isdecimal() else value
        elif reason := reason_against(name):
            left_out.append(f"{option} ({reason})")
            continue
        else:
            extra.append(option)
        taken.append(option)
        build(SlurmSettings, {**values, "extra": extra}, file=f"{path}:{number}")
    total = next((option for option in taken if option.startswith("--gpus=")), None)
    if total is not None and values.get("nodes", 1) > 1:
        del values["gres"]
        taken.remove(total)
        left_out.append(f"{total} (launcher plans the cards of each node: --gpus-per-node)")
    more = {"extra": extra} if extra else {}
    return BatchScript(
        path, build(SlurmSettings, {**values, **more}, file=path), tuple(taken), tuple(left_out)
    )


def with_batch_script(job: Job, script: BatchScript, host: Host) -> Job:
    """Return a job with the settings of its script's lines, except those that the job itself has.

    Options in the host's `extra` stay, unless the script has the same ones.
    """
    asked = script.settings
    given = {key: getattr(asked, key) for key in asked.model_fields_set}
    if asked.extra and isinstance(host, SlurmHost):
        named = {_name(flag) for flag in asked.extra}
        given["extra"] = (*(flag for flag in host.slurm.extra if _name(flag) not in named), *asked.extra)
    if job.slurm is not None:
        given |= {key: getattr(job.slurm, key) for key in job.slurm.model_fields_set}
    return job.model_copy(update={"slurm": SlurmSettings(**given)})


def batch_script_findings(command: Sequence[str], folder: Path) -> Iterator[Finding]:
    """Yield a note about the lines of a command's script, or about a command that submits a job itself."""
    script = read_batch_script(command, folder)
    if script is not None:
        yield Finding(level="note", code="batch-script", message=script.words)
    words = [word for word in command if not word.startswith("-")]
    if words[:1] != ["sbatch"]:
        return
    message = (
        "sbatch submits another job: this run only submits it, and has succeeded once Slurm has taken it"
    )
    mend = f"as this run's job   launch … -- bash {shlex.join(words[1:])}" if words[1:] else ""
    yield Finding(level="note", code="submits-a-job", message=message, mend=mend)


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _script_of(command: Sequence[str]) -> str | None:
    """Return the path of the shell script that a command starts; None if it starts another program."""
    if not command:
        return None
    if os.path.basename(command[0]) in SHELLS:
        return (
            next((word for word in command[1:] if not word.startswith("-")), None)
            if "-c" not in command
            else None
        )
    return command[0] if os.sep in command[0] else None


def _options(text: str, path: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield the options of a script's `#SBATCH` lines: number of the line, long name, value.

    As for sbatch, lines after the first command do not count. Raises BadFileError for a quote without its end.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if not line.startswith((MARK + " ", MARK + "\t")):
            continue
        try:
            words = shlex.split(line[len(MARK) :], comments=True)
        except ValueError as error:
            raise BadFileError(f"{path}:{number}: {MARK}: {str(error).lower()}") from error
        while words:
            word = words.pop(0)
            name, sign, value = word.partition("=")
            if word.startswith("-") and not word.startswith("--"):
                name, sign, value = _LONG.get(word[1:2], word), word[2:], word[2:].removeprefix("=")
            if not sign and words and not words[0].startswith("-"):
                sign, value = "=", words.pop(0)
            yield number, name.removeprefix("--"), value if sign else None
