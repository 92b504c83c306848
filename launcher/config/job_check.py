"""Find a job's faults before any host is contacted: missing local paths, settings that the job does not declare."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from launcher.check.reading.script_use import script_use
from launcher.config import included_jobs, job_variables, local_paths
from launcher.config.resolve import Task
from launcher.planning.precision.workload import CHECKPOINTING_NAMES
from launcher.planning.script.source import source
from launcher.values.credential import credential_in
from launcher.values.parsing import nearest
from launcher.values.plan import Finding
from launcher.values.software.requirement import distribution

STARS = "***"
_MODEL_FILES = ("config.json", "adapter_config.json")
"""Files of which a model folder has at least one, for `from_pretrained` of transformers and peft."""
_MODEL_SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""The suffixes of model files; a user's script may read a model from other files than `_MODEL_FILES`."""


def findings(task: Task) -> tuple[Finding, ...]:
    """Return the findings about a job on this machine, refusals first."""
    found = [finding for key, value in local_paths.values_of(task.job) for finding in _path(task, key, value)]
    found += [*task.package_findings, *_settings(task), *job_variables.findings(task.job.variables)]
    found += on_end_findings(task.job.on_end)
    found += included_jobs.findings(task)
    return tuple(sorted(found, key=lambda finding: finding.level != "refuse"))


def undeclared(
    settings: Collection[str], declared: Collection[str], where: str, table: str = "settings"
) -> list[Finding]:
    """Return a refusal for each setting of a table that `where` does not declare.

    If `where` declares no settings, all are allowed.
    """
    if not declared:
        return []
    return [
        Finding(
            level="refuse",
            code="undeclared-setting",
            message=f"{table}.{name}: {where} declares no such setting{nearest(name, declared)}",
            mend=f"declared: {', '.join(declared)}",
        )
        for name in settings
        if name not in declared
    ]


def on_end_findings(words: Sequence[str]) -> Iterator[Finding]:
    """Yield a refusal if `on_end`, a command or an address, contains a secret: a job's values are recorded."""
    if kind := next(filter(None, map(credential_in, words)), None):
        message = f"on_end: it contains {kind}, and a job's values are recorded"
        mend = 'export NOTIFY_URL=…     then   on_end = "$NOTIFY_URL"'
        yield Finding(level="refuse", code="secret-in-on-end", message=message, mend=mend)


def without_refused(task: Task) -> Task:
    """Return a task with stars instead of the values that are refused because they would be recorded."""
    job = task.job
    variables = {
        name: STARS if job_variables.is_refused(name, value) else value
        for name, value in job.variables.items()
    }
    on_end = tuple(STARS if credential_in(word) else word for word in job.on_end)
    return task._replace(job=job.model_copy(update={"variables": variables, "on_end": on_end}))


def _settings(task: Task) -> list[Finding]:
    where = task.job.name if task.file is None else str(task.file)
    declared = task.declared
    if declared and {*CHECKPOINTING_NAMES} & {*task.job.settings} - {*declared}:
        is_planned = "checkpointing" in (script_use(task.job, task.code).takes or ())
        declared = (*declared, *CHECKPOINTING_NAMES) if is_planned else declared
    return [
        *undeclared(task.job.settings, declared, where),
        *undeclared(task.job.verify, declared, where, "verify"),
    ]


def _path(task: Task, key: str, written: str) -> Iterator[Finding]:
    """Yield the findings about a value that may be a path."""
    path = task.locate(key, written)
    if source(written).kind == "local":
        if not os.path.exists(path):
            yield _missing(task, key, written, path)
        elif not (path.is_dir() or path.is_file()):
            message = f"{_said(key, written)} is neither a file nor a folder"
            yield Finding(level="refuse", code="not-a-file", message=message)
        else:
            yield from _known_here(task, key, written, path)
    elif _seems_a_path(written, path) and not os.path.exists(task.code / written):
        # A path below the code folder is sent with it, and the script can open it as it is written.
        yield _missing(task, key, written, path)


def _seems_a_path(written: str, path: Path) -> bool:
    """Return whether a value without a prefix is meant as a path: by its form, or because its parent folder exists here."""
    if local_paths.can_only_be_a_path(written):
        return True
    return local_paths.is_unmarked(written) and "/" in written and path.parent.is_dir()


def _said(key: str, written: str) -> str:
    return f"{key} = {json.dumps(written, ensure_ascii=False)}"


def _missing(task: Task, key: str, written: str, path: Path) -> Finding:
    """Return the refusal of a path that does not exist here, with the nearest existing one."""
    message = f"{_said(key, written)}: {path} does not exist here{_nearest(written, path)}"
    mends = []
    working = Path.cwd() / written
    if working != path and not os.path.isabs(written) and os.path.exists(working):
        relative = os.path.relpath(working, task.folder_of(key))
        here = relative if relative.startswith("../") else f"./{relative}"
        mends.append(f'paths in {task.file} are relative to its folder   {key} = "{here}"')
    mends.append(
        f"a path on the host   host:{written}"
        if written.startswith(("/", "~"))
        else "a path on the host   host:/PATH"
    )
    if source(written).kind == "name":
        mends.append(f"a name that the script resolves   hub:{written}")
    return Finding(level="refuse", code="no-such-path", message=message, mend="\n  ".join(mends))


def _nearest(written: str, path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    match = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f": did you mean '{written.rstrip('/').removesuffix(path.name)}{match[0]}'?" if match else ""


def _known_here(task: Task, key: str, written: str, path: Path) -> Iterator[Finding]:
    """Yield the findings about a path that exists."""
    if key in ("model", "teacher") and path.is_dir() and _is_for_transformers(task):
        yield from _model_folder(key, written, path)
    if key not in task.inferred or not local_paths.could_be_a_name(written):
        return
    name = written.removeprefix("./")
    message = f"{key}: {name} is the {'folder' if path.is_dir() else 'file'} {path}, which is sent"
    yield Finding(level="note", code="path-here", message=message, mend=f"the hub's   {key}=hub:{name}")


def _is_for_transformers(task: Task) -> bool:
    return any(distribution(one).lower() == "transformers" for one in task.job.requirements)


def _model_folder(key: str, written: str, path: Path) -> Iterator[Finding]:
    """Yield the refusal of a folder without model files, or a note if a folder below it has them."""
    if any(file.suffix in _MODEL_SUFFIXES for file in path.iterdir()):
        return
    below = sorted(found.parent.name for name in _MODEL_FILES for found in path.glob(f"*/{name}"))
    message = f"{_said(key, written)}: {path} holds no {' or '.join(_MODEL_FILES)}"
    if below:
        mend = f"a folder in it does   {key}={written.rstrip('/')}/{below[-1]}"
        yield Finding(level="note", code="no-model-there", message=message, mend=mend)
        return
    mend = f"a folder as save_pretrained writes it, or a name   {key}=hub:ORG/NAME"
    yield Finding(level="refuse", code="no-model-there", message=message, mend=mend)
