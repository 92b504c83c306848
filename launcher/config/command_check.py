"""Check whether the script of a command is among the sent files, and can be started."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.check.reading.script_use import BY_ADAPTATION, BY_THE_WORKER, imported, worker_use
from launcher.config.resolve import Task
from launcher.planning.precision.workload import ESTIMATED_NAMES
from launcher.planning.script.script import (
    Script,
    interpreter_of,
    leading_assignments,
    script_of,
    starts_python,
)
from launcher.planning.script.source import source
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan
from launcher.values.precision import PrecisionRequest
from launcher.values.software.requirement import distribution
from launcher.values.upload_selection import ExcludedPath, ExclusionReason, UploadSelection

_MAGIC = (b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""The first bytes of a file that a kernel can start: a script's first line, a program of Linux or macOS."""
_BESIDE_THE_CODE = ("artifacts", "checkpoints", "data", "home")
"""The folders beside the code on the host, which a command may name as `../data/…`."""
_AT_THE_END = ("2>&1", "&")
_OF_A_SHELL = ("&&", "||", "|", ";", ">", ">>", "<", *_AT_THE_END)
_INTERPRETERS = {".py": "python", ".sh": "bash"}


def findings(job: Job, selection: UploadSelection) -> tuple[Finding, ...]:
    """Return the findings that keep a job's command from starting, given the files sent with it.

    A folder that is refused gets no findings about its script.
    """
    if selection.findings:
        return ()
    found = [
        *_assignments(job.command),
        *_shell_words(job.command, selection),
        *_first_word(job.command, selection),
    ]
    for script in (interpreter_of(job.command), script_of(job.command)):
        if script is not None:
            found += _script(script, job, selection)
    return tuple(found)


def without_effect(plan: Plan, asked: PrecisionRequest, job: Job, *, rehearses: bool) -> Iterator[Finding]:
    """Yield a note for each option that has no effect because the script does not take its value from the plan."""
    mend = (
        "--adapt     gives the unchanged script the plan's precision; or import launcher_worker in the script"
    )
    if rehearses and not plan.rehearsed:
        message = "--rehearse: your script decides its own precision and batch, and the start-up hook does not change it: it runs on a CPU as written"
        yield Finding(level="note", code="nothing-rehearsed", message=message, mend=mend)
    if asked != "auto" and not plan.hands_out("precision"):
        message = f"--precision {asked}: your script decides its own precision"
        yield Finding(level="note", code="precision-not-taken", message=message, mend=mend)
    if job.checkpointing is True and not plan.hands_out("checkpointing"):
        message = "checkpointing = true: your script decides itself whether it computes activations again"
        yield Finding(level="note", code="checkpointing-not-taken", message=message, mend=mend)


def by_the_worker(*, adapts: bool) -> set[str]:
    """Return the job keys that reach the script only through the worker; `adapts`: the run is adapted."""
    return {*BY_THE_WORKER} - {*(BY_ADAPTATION if adapts else ())}


def ignored_settings(task: Task) -> Iterator[Finding]:
    """Yield a refusal of the keys of --set that neither the script nor launch uses.

    Where the code of the script could not all be read, yield a note instead. Data that is sent gets a note too, if
    the script can only find it by its path.
    """
    used = {"method", *(f"settings.{name}" for name in ESTIMATED_NAMES)}
    passed = by_the_worker(adapts=task.job.adapt)
    keys = sorted(key for key in task.changed - used if key.partition(".")[0] in passed)
    data = sorted(key for key in task.changed if key.partition(".")[0] == "data")
    use = worker_use(task.job, task.code) if keys or data else None
    if use is None or use.uses_worker:
        return
    if data and use.is_certain and not use.names_data:
        yield from _data_beside(task)
    if not keys:
        return
    names = ", ".join(keys)
    if use.is_certain:
        message = f"--set {names}: the script does not import launcher_worker, so nothing would use it"
        yield _refusal("setting-ignored", message, _other_ways(task, keys))
    else:
        message = f"--set {names}: only a script that imports launcher_worker gets it; the code that was found does not import it"
        yield Finding(level="note", code="setting-ignored", message=message, mend=_other_ways(task, keys))


def _other_ways(task: Task, keys: Sequence[str]) -> str:
    """Return the ways by which the values of these keys can reach a script."""
    job = task.job
    values = {
        key.removeprefix("settings."): job.settings.get(key.removeprefix("settings."), getattr(job, key, "…"))
        for key in keys
        if "." not in key.removeprefix("settings.") and key not in ("batch", "settings")
    }
    adapted = [key for key in keys if key.partition(".")[0] in BY_ADAPTATION]
    ways = []
    if values:
        options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        ways.append(f"an argument of the script, if it has one   -- {shlex.join([*job.command, *options])}")
    if adapted and not job.adapt and starts_python(job.command):
        ways.append(f"--adapt     gives {', '.join(adapted)} to a Trainer of the unchanged script")
    ways.append("import launcher_worker in the script")
    return "\n  or ".join(ways)


def _data_beside(task: Task) -> Iterator[Finding]:
    """Yield a note for data that is sent, and that the command does not name."""
    for name, written in (("train", task.job.data.train), ("eval", task.job.data.eval)):
        if written is not None and source(written).kind == "local":
            path = f"../data/{name}/{task.locate(f'data.{name}', written).name}"
            message = f"data.{name}: it is sent to {path}, and the script, which does not import launcher_worker, does not name that path"
            mend = f"name it in the command   -- {shlex.join(task.job.command)} {path}"
            yield Finding(level="note", code="data-not-named", message=message, mend=mend)


def not_installed(plan: Plan, facts: Facts, job: Job, folder: Path) -> Iterator[Finding]:
    """Yield a note on each package that the job's script imports and that, by the probe, the job's Python lacks."""
    python = facts.interpreter
    if python is None or python.error or plan.environment is not None or plan.image is not None:
        return
    required = set(map(distribution, plan.requirements))
    lacking = [name for name, version in python.packages.items() if version is None and name not in required]
    for name, file in imported(job, folder).items() if lacking else ():
        if name in lacking:
            message = f"{plan.host}: {python.path} lacks {name}, which {file} imports: the job would fail"
            mend = f"install it there   {python.path} -m pip install {name}"
            if plan.host_environment is None:
                mend = f'a Python that has it   environment = "~/venvs/…"  for {plan.host}     or one made for the job   --with {name}'
            yield Finding(level="note", code="import-missing", message=message, mend=mend)


def _refusal(code: str, message: str, mend: str) -> Finding:
    return Finding(level="refuse", code=code, message=message, mend=mend)


def _assignments(command: Sequence[str]) -> Iterator[Finding]:
    if leading_assignments(command):
        message = f"'{command[0]}' is the first word of the command, and no shell reads it"
        count = leading_assignments(command)
        options = " ".join(f"-e {shlex.quote(word)}" for word in command[:count])
        mend = f"pass variables by -e   launch {options} -- {shlex.join(command[count:])}"
        yield _refusal("variables-first", message, f"{mend}\n  a secret   -s NAME")


def _shell_words(command: Sequence[str], selection: UploadSelection) -> Iterator[Finding]:
    """Refuse a command that needs a shell: it has a word that only a shell understands, or it is a whole line in quotes."""
    triples = zip(command, command[1:], [*command[2:], ""], strict=False)
    word = next((triple[1] for triple in triples if _is_of_shell(*triple)), None)
    if word is not None:
        line = " ".join(one if one in _OF_A_SHELL else shlex.quote(one) for one in command)
        message = f"'{word}' is a word of the command, and no shell reads it"
        yield _refusal(
            "shell-words", message, f"have a shell read the line   launch … -- sh -c {shlex.quote(line)}"
        )
    elif len(command) == 1 and " " in command[0] and not _is_program(command[0], selection):
        message = f"'{command[0]}' is one word, and no program is called that"
        yield _refusal("shell-words", message, f"without the quotes   launch … -- {command[0]}")


def _is_of_shell(before: str, word: str, after: str) -> bool:
    """Return whether a word is an operator of a shell, and not a value, as in `--delimiter ';'` or `--marks , ';' '!'`."""
    is_value = before.startswith("-") or not re.search(r"\w", before)
    joins = bool(re.search(r"[A-Za-z]", after)) if after else word in _AT_THE_END
    return word in _OF_A_SHELL and joins and not is_value


def _is_program(path: str, selection: UploadSelection) -> bool:
    return path.startswith(("/", "~", ".")) or selection.has(path)


def _first_word(command: Sequence[str], selection: UploadSelection) -> Iterator[Finding]:
    """Refuse a command whose first word cannot be a program: an option, or a script of the folder."""
    word, *more = command
    if word.startswith("-"):
        start = next((place for place, one in enumerate(command) if script_of(command[place:])), None)
        options = shlex.join(command[:start])
        own = "…" if start is None else shlex.join(command[start:])
        message = f"'{word}' is the first word of the command, and no program is called that"
        mend = f"options of launch come before --   launch {options} -- {own}"
        yield _refusal("option-first", message, mend)
        return
    interpreter = _INTERPRETERS.get(posixpath.splitext(word)[1])
    if interpreter is None or "/" in word:
        return
    alike = difflib.get_close_matches(word, selection.paths, n=1, cutoff=0.8)
    script = word if selection.has(word) else next(iter(alike), None)
    if script is not None:
        message = f"'{word}' is the first word of the command, and no program is called that" + (
            "" if script == word else f": did you mean '{script}'?"
        )
        mend = f"start it by its interpreter   -- {interpreter} {shlex.join([script, *more])}"
        yield _refusal("script-first", message, mend)


def _script(script: Script, job: Job, selection: UploadSelection) -> Iterator[Finding]:
    if script.is_module:
        yield from _module(script.path, job, selection)
    elif script.path == ".." or script.path.startswith("../"):
        yield from _outside(script.path, selection)
    elif script.path != "." and not any(map(selection.has, _spellings(script.path, selection))):
        yield _absent(script.path, selection)
    elif script.is_program:
        yield from _program(script.path, job.command, selection.folder / script.path)


def _spellings(path: str, selection: UploadSelection) -> tuple[str, str]:
    """Return a path below the folder, and the same path with its links resolved."""
    real = os.path.relpath(os.path.realpath(selection.folder / path), os.path.realpath(selection.folder))
    return path, real


def _absent(path: str, selection: UploadSelection) -> Finding:
    """Return the refusal of a script that is not sent: it is excluded, or it does not exist."""
    if os.path.lexists(selection.folder / path):
        entries = map(selection.why_left_out, _spellings(path, selection))
        return _left_out(path, next(filter(None, entries), None))
    match = _nearest(path, selection.paths)
    message = f"'{path}' does not exist in {selection.folder}" + (
        f": did you mean '{match}'?" if match else ""
    )
    mend = 'the command is started in that folder; another one is   --set code=…     or code = "…" in the job\'s file'
    return _refusal("no-such-script", message, mend)


def _nearest(path: str, paths: Collection[str]) -> str | None:
    name = path.rpartition("/")[2]
    elsewhere = [one for one in paths if one.rpartition("/")[2] == name]
    if elsewhere:
        return min(elsewhere, key=lambda one: (one.count("/"), one))
    return next(iter(difflib.get_close_matches(path, sorted(paths), n=1, cutoff=0.6)), None)


def _left_out(path: str, entry: ExcludedPath | None) -> Finding:
    if entry is None:
        message, mend = f"'{path}' is not sent", "launch --dry-run     lists the files that are sent"
    elif entry.why is ExclusionReason.ENVIRONMENT:
        message = f"'{path}' is not sent: it belongs to the virtual environment {entry.path}"
        mend = "`python` is the job's interpreter on the host; its packages are in the job's   requirements = […]"
    elif entry.why in (
        ExclusionReason.LINK_OUT,
        ExclusionReason.LINK_TO_LEFT_OUT,
        ExclusionReason.SPECIAL,
        ExclusionReason.UNREADABLE,
    ):
        message = f"'{path}' is not sent: {entry.path} {entry.why.value}"
        mend = "put the file itself into the folder"
    else:
        what = "" if entry.path == path else f" ({entry.path})"
        message = f"'{path}' is not sent: {entry.why.value}{what}"
        mend = f"add this line to .launchignore   !{path}"
    return _refusal("script-left-out", message, mend)


def _outside(path: str, selection: UploadSelection) -> Iterator[Finding]:
    parts = [part for part in path.split("/") if part != ".."]
    exists = os.path.exists(selection.folder / path)
    if exists and (not parts or parts[0] not in _BESIDE_THE_CODE):
        message = f"'{path}' is outside {selection.folder}, the only folder that is sent"
        yield _refusal("script-left-out", message, "send the folder above too   --set code=..")


def _module(name: str, job: Job, selection: UploadSelection) -> Iterator[Finding]:
    """Yield the refusal of a module that is missing in a package of the folder.

    Other modules may be installed on the host.
    """
    package, *inner = name.split(".")
    if f"{package}/__init__.py" not in selection.paths or not inner:
        return
    path = "/".join([package, *inner])
    candidates = (f"{path}.py", f"{path}/__main__.py")
    is_installed_too = package in map(distribution, job.requirements)
    if is_installed_too or any(candidate in selection.paths for candidate in candidates):
        return
    if b"__path__" in read_bounded(selection.folder / package / "__init__.py", MAX_BYTES, cuts=True):
        return  # the package looks for its modules elsewhere too
    here = [one for one in candidates if os.path.exists(selection.folder / one)]
    yield _absent((here or candidates)[0], selection)


def _program(path: str, command: Sequence[str], file: Path) -> Iterator[Finding]:
    """Yield the reason why a file cannot be executed directly."""
    if not file.is_file():
        yield _refusal("not-executable", f"'{path}' is a folder", "name the program in it")
        return
    interpreter = _INTERPRETERS.get(file.suffix, "")
    by_hand = f"-- {interpreter} {shlex.join([path, *command[1:]])}" if interpreter else ""
    if not file.stat().st_mode & 0o111:
        mends = [f"chmod +x {shlex.quote(str(path))}", by_hand]
        yield _refusal("not-executable", f"'{path}' is not executable", _either(mends))
        return
    start = read_bounded(file, 4, cuts=True)
    if not start.startswith(_MAGIC):
        mends = [by_hand, f"begin it with the line   #!/usr/bin/env {interpreter or 'bash'}"]
        yield _refusal("not-executable", f"'{path}' does not begin with a line `#!`", _either(mends))


def _either(mends: Sequence[str]) -> str:
    return "     or   ".join(filter(None, mends))
