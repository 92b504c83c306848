"""Check the settings and the rows of the included jobs before they travel, with the readers that the jobs themselves use.

Only launcher's own `settings.py` and `rows.py` are run here, never a file of the user's folder.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.base.resources import data_folder
from launcher.config.resolve import Task
from launcher.planning.script.source import source
from launcher.values.plan import Finding

SETTINGS = {"sft.py": "Sft", "distill.py": "Distill"}
"""The class of the settings of each job that has rows."""
MOST_ROWS = 20_000
"""More rows are checked on the host: reading these takes about 0.2 s."""
MAX_JSON_BYTES = 100_000_000
"""A larger `.json` is checked on the host: it is read as a whole."""
OF_DATA = ("demo-data", "rows")
"""The codes of findings about data, which a card's ladder does not depend on."""
_ROWS = "your rows   data.train=./rows.jsonl"


def findings(task: Task) -> Iterator[Finding]:
    """Yield the refusals of the settings and the data of an included job, and notes of the rows that were read."""
    program = task.job.command[-1]
    if task.code != data_folder("jobs") or program not in SETTINGS:
        return
    data = {name: written for name, written in task.job.data if written is not None}
    kind = getattr(_own("settings"), SETTINGS[program])
    for settings in (task.job.settings, {**task.job.settings, **task.job.verify}):
        if wrong := _wrong_setting(kind, settings, task, data):
            yield Finding(level="refuse", code="wrong-setting", message=wrong)
            break
    own = [key for key in ("model", "teacher") if getattr(task.job, key) not in (None, "demo")]
    if own and data.get("train") == "demo" and not {"data", "data.train"} & task.changed:
        message = f"the {own[0]} is yours, and the data is launcher's demo questions"
        mend = f"{_ROWS}\n  the demo's   data.train=demo"
        yield Finding(level="refuse", code="demo-data", message=message, mend=mend)
    for name, written in data.items():
        if source(written).kind == "local":
            yield from _rows(f"data.{name}", task.locate(f"data.{name}", source(written).value))


def _wrong_setting(
    kind: Any, settings: Mapping[str, object], task: Task, data: Mapping[str, str]
) -> str | None:
    """Return what is wrong with the settings that the job's file declares; None if nothing is."""
    declared = {name: value for name, value in settings.items() if name in task.declared}
    try:
        _own("settings").read_settings(kind, declared, task.job, data)
    except SystemExit as error:
        return str(error)
    return None


def _rows(key: str, path: Path) -> tuple[Finding, ...]:
    """Return a refusal of the first wrong row or file, else a note of the rows; the items of a batch read them once."""
    if not path.exists():
        return ()  # refused elsewhere, with the nearest name
    try:
        stats = [one.stat() for one in (path.iterdir() if path.is_dir() else [path])]
    except OSError:  # the reader says of which file
        return tuple(_read_rows(key, path))
    return _rows_of(key, path, tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats))


@functools.lru_cache(maxsize=8)
def _rows_of(key: str, path: Path, _files: tuple[tuple[int, int, int], ...]) -> tuple[Finding, ...]:
    return tuple(_read_rows(key, path))


def _read_rows(key: str, path: Path) -> Iterator[Finding]:
    reader = _own("rows")
    try:
        files, beside = reader.files_of(path)
        here = [file for file in files if _is_read_here(file)]
        parts = [(str(file), reader.READERS[file.suffix.lower()](file)) for file in here]
        read = reader.read_parts(parts, MOST_ROWS, beside) if parts else None
    except SystemExit as error:
        message, mend = f"{key}: {error}", f"the forms   {reader.FORMS}"
        yield Finding(level="refuse", code="wrong-row", message=message, mend=mend)
    except OSError as error:
        yield Finding(level="refuse", code="wrong-row", message=f"{key}: {path}: {error.strerror}")
    else:
        if read is not None:
            is_part = len(read.rows) == MOST_ROWS or len(here) < len(files)
            words = f"{'at least ' * is_part}{read.said}{'; the rest is checked on the host' * is_part}"
            yield Finding(level="note", code="rows", message=f"{key}: {words}")


def _is_read_here(file: Path) -> bool:
    """Return whether a data file is read on this computer: Parquet needs further packages."""
    suffix = file.suffix.lower()
    return suffix != ".parquet" and (suffix != ".json" or file.stat().st_size <= MAX_JSON_BYTES)


@functools.cache
def _own(name: str) -> Any:
    """Return launcher's own file of the jobs as a module, loaded once."""
    spec = importlib.util.spec_from_file_location(f"launcher_{name}", data_folder("jobs") / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(2, f"launcher's own {name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
