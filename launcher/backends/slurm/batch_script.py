"""Read the `#SBATCH` lines of a job script that a command starts, as in `bash job.sbatch`.

    read_batch_script(("bash", "job.sbatch"), Path("project"))

`sbatch` itself would read them; launcher submits a script of its own, so it passes them on as `slurm.*` keys.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Iterator, Sequence
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
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "I": "immediate", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet",
    "S": "core-spec", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""The short options of sbatch, and their names."""
_ALONE = (
    "exclusive",
    "hold",
    "overcommit",
    "oversubscribe",
    "quiet",
    "verbose",
    "wait",
    "no-kill",
    "requeue",
    "no-requeue",
)
"""Options whose next word is another option, and not their value."""
_CARDS = ("gpus", "gpus-per-node", "gres")
_OTHER_CARDS = "another option names the cards"
_ONE = ("ntasks", "ntasks-per-node", "tasks-per-node")
_NAMES = ("job-name", "output", "error", "open-mode", "chdir", "export")
"""Options that need no word if they are left out: launcher names a job, keeps its log, and starts it in the run's folder."""
_HETEROGENEOUS = ("hetjob", "packjob")
_STEPS = re.compile(r"^\s*(?:exec\s+|time\s+)?(srun|mpirun|mpiexec)\b", re.MULTILINE)
"""Commands that start processes on all nodes of a job."""
_NO_LIMIT = ("0", "UNLIMITED", "INFINITE")
MAX_SHOWN = 300


class BatchScript(NamedTuple):
    """A script with `#SBATCH` lines: its path as in the command, and what its lines ask for.

    `taken` are the options that became settings. `left_out` are the names of the others, each with the reason:
    a value may be a secret. `total_cards` is the number of cards on all nodes together, as in `--gpus=4`.
    """

    path: str
    settings: SlurmSettings
    taken: tuple[str, ...]
    left_out: tuple[str, ...]
    total_cards: str | None = None
    starts_steps: bool = False
    """Whether it starts processes on all nodes itself, as by `srun`."""

    @property
    def words(self) -> str:
        """What was taken and left out, in one sentence."""
        left = f"; left out: {'; '.join(self.left_out)}" if self.left_out else ""
        taken = shlex.join(self.taken) or "nothing"
        taken = taken if len(taken) <= MAX_SHOWN else f"{taken[:MAX_SHOWN]}…"
        return f"{self.path}: its {MARK} lines ask for {taken}{left}"


def read_batch_script(command: Sequence[str], folder: Path, named: Container[str] = ()) -> BatchScript | None:
    """Return what the `#SBATCH` lines of a command's script ask for; None for a command without such lines.

    `folder` is the code folder, `named` are the keys that the job itself has, so that their lines do not count.
    Raises BadFileError for a line that sbatch would refuse, or whose value has no key.
    """
    path = _script_of(command)
    try:
        text = "" if path is None else read_bounded(folder / path, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, BadFileError):  # the launch reports it
        return None
    if path is None or MARK not in text:
        return None
    if "\r\n" in text:
        raise BadFileError(
            f"{path}: its lines end as on DOS, and sbatch refuses such a script\n  next   sed -i 's/\\r$//' {shlex.quote(path)}"
        )
    values: dict[str, Any] = {}
    extra: list[str] = []
    taken: list[str] = []
    left_out: list[str] = []
    total: str | None = None
    for number, name, value in _options(text, path):
        option = f"--{name}" if value is None else f"--{name}={value}"
        if name in _NAMES or (name in _ONE and value == "1"):
            continue
        if name in _CARDS and value is not None and ("gres" in values or total is not None):
            left_out.append(f"--{name} ({_OTHER_CARDS})")
            continue
        if name == "time" and (value or "").upper() in _NO_LIMIT:
            left_out.append("--time (without a limit; the partition's counts)")
            continue
        if name == "gpus" and value is not None:
            total = value
        elif name == "gpus-per-node" and value is not None:
            values["gres"] = f"gpu:{value}"
        elif name in FLAG_KEYS:
            if value is None:
                raise BadFileError(f"{path}:{number}: {MARK} --{name}: its value is missing")
            if name in named:
                continue
            values[name] = int(value) if name == "nodes" and value.isdecimal() else value
        elif full := next((one for one in FLAG_KEYS if len(name) > 2 and one.startswith(name)), None):
            raise BadFileError(f"{path}:{number}: {MARK} --{name}: write it in full   --{full}")
        elif reason := reason_against(name):
            left_out.append(f"--{name} ({reason})")
            continue
        elif "extra" in named:
            left_out.append(f"--{name} (--set slurm.extra replaces it)")
            continue
        else:
            extra.append(option)
        taken.append(option)
        build(SlurmSettings, {**values, "extra": extra}, file=f"{path}:{number}")
    more = {"extra": extra} if extra else {}
    settings = build(SlurmSettings, {**values, **more}, file=path)
    return BatchScript(path, settings, tuple(taken), tuple(left_out), total, bool(_STEPS.search(text)))


def with_batch_script(job: Job, script: BatchScript, host: Host) -> Job:
    """Return a job with the settings of its script's lines, except those that the job itself has.

    Options in the host's `extra` stay, unless the script has the same ones. Raises BadFileError for a total number
    of cards that the nodes cannot have equal shares of.
    """
    asked = script.settings
    given = {key: getattr(asked, key) for key in asked.model_fields_set}
    if asked.extra and isinstance(host, SlurmHost):
        named = {_name(flag) for flag in asked.extra}
        given["extra"] = (*(flag for flag in host.slurm.extra if _name(flag) not in named), *asked.extra)
    if job.slurm is not None:
        given |= {key: getattr(job.slurm, key) for key in job.slurm.model_fields_set}
    if script.total_cards is not None and "gres" not in given:
        nodes = given.get("nodes", host.slurm.nodes if isinstance(host, SlurmHost) else 1)
        given["gres"] = _gres_of_each(script, nodes)
    return job.model_copy(update={"slurm": build(SlurmSettings, given, file=script.path)})


def _gres_of_each(script: BatchScript, nodes: int) -> str:
    """Return the gres of each node for the cards on all nodes together, such as `4` or `a100:4`."""
    kind, _, count = str(script.total_cards).rpartition(":")
    if not count.isdecimal() or int(count) % nodes:
        raise BadFileError(
            f"{script.path}: {MARK} --gpus={script.total_cards} on {nodes} node{'s' * (nodes != 1)}: launcher plans the same number on each\n"
            "  next   --gpus-per-node=… in its place"
        )
    return ":".join(filter(None, ("gpu", kind, str(int(count) // nodes))))


def batch_script_findings(
    command: Sequence[str], folder: Path, nodes: int, named: Container[str] = ()
) -> Iterator[Finding]:
    """Yield a note about the lines of a command's script, or about a command that submits a job itself.

    Refuse a script on several `nodes` that starts processes on all of them: launcher starts it on each.
    """
    script = read_batch_script(command, folder, named)
    if script is not None:
        yield Finding(level="note", code="batch-script", message=script.words)
    if script is not None and script.starts_steps and nodes > 1:
        message = f"{script.path}: launcher starts it on each of {nodes} nodes, and its srun would start everything {nodes} times"
        mend = "one node   --set slurm.nodes=1     or the ranks by launcher   launch … --set slurm.nodes=N -- python train.py"
        yield Finding(level="refuse", code="starts-on-all-nodes", message=message, mend=mend)
    words = [word for word in command if not word.startswith("-")]
    if words[:1] != ["sbatch"]:
        return
    message = "sbatch submits another job: this run only submits it, and has succeeded once Slurm has taken it. That job works in this run's folder, which launch rm deletes"
    mend = f"as this run's job   launch … -- bash {shlex.join(words[1:])}" if words[1:] else ""
    yield Finding(level="note", code="submits-a-job", message=message, mend=mend)


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _script_of(command: Sequence[str]) -> str | None:
    """Return the path of the shell script that a command starts; None if it starts another program."""
    if not command or os.path.basename(command[0]) not in SHELLS:
        return command[0] if command and os.sep in command[0] else None
    words = iter(command[1:])
    for word in words:
        if word == "-c" or (word[:1] == "-" and word[:2] != "--" and "c" in word):
            return None
        if word[:1] not in ("-", "+"):
            return word
        if word in ("--rcfile", "--init-file") or (word[:2] != "--" and word[-1] in "oO"):
            next(words, None)  # its value
    return None


def _options(text: str, path: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield the options of a script's `#SBATCH` lines: number of the line, long name, value.

    As for sbatch, lines after the first command do not count. Raises BadFileError for a quote without its end.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if not line.startswith(MARK) or line[len(MARK) : len(MARK) + 1].isalnum():
            continue
        try:
            words = shlex.split(line[len(MARK) :].rstrip("\\"), comments=True)
        except ValueError as error:
            raise BadFileError(f"{path}:{number}: {MARK}: {str(error).lower()}") from error
        while words:
            word = words.pop(0)
            if not word.startswith("-") and word not in _HETEROGENEOUS:
                raise BadFileError(f"{path}:{number}: {MARK}: {word!r} is no option of sbatch")
            while len(word) > 2 and word[0] == "-" and _LONG.get(word[1]) in _ALONE:  # as in -vp gpu
                yield number, _LONG[word[1]], None
                word = f"-{word[2:]}"
            name, sign, value = word.partition("=")
            if word.startswith("-") and not word.startswith("--"):
                name, sign, value = _LONG.get(word[1:2], word[1:]), word[2:], word[2:].removeprefix("=")
            takes_value = name.removeprefix("--") not in _ALONE
            if not sign and takes_value and words and not words[0].startswith("-"):
                sign, value = "=", words.pop(0)
            yield number, name.removeprefix("--"), value if sign else None
