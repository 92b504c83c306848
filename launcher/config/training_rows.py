"""Check the rows of the included fine-tune before they travel, with the reader that the job itself uses.

Only launcher's own `rows.py` is run here, never a file of the user's folder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.base.resources import data_folder
from launcher.config.resolve import Task
from launcher.planning.script.source import source
from launcher.values.plan import Finding

MOST_ROWS = 20_000
"""More rows are checked on the host: reading these takes about 0.2 s."""
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
"""The files that are read without further packages."""
MAX_JSON_BYTES = 100_000_000
"""A larger `.json` is checked on the host: it is read as a whole."""


def findings(task: Task) -> Iterator[Finding]:
    """Yield a refusal for the first wrong row of each file of the included job `sft`."""
    if task.code != data_folder("jobs") or task.job.command[-1:] != ("sft.py",):
        return
    for name, written in task.job.data:
        if written is None or source(written).kind != "local":
            continue
        path = task.locate(f"data.{name}", source(written).value)
        is_whole = path.suffix == ".json" and path.is_file() and path.stat().st_size > MAX_JSON_BYTES
        if path.is_file() and path.suffix in _SUFFIXES and not is_whole and (wrong := _wrong(path)):
            yield Finding(
                level="refuse",
                code="wrong-row",
                message=f"data.{name}: {wrong}",
                mend='e.g.   {"prompt": "…", "completion": "…"}   or   {"messages": [{"role": "user", "content": "…"}, …]}',
            )


def _wrong(path: Path) -> str | None:
    """Return where and why a file's first wrong row is wrong; None if the rows that are checked are right."""
    try:
        _reader().read_rows(str(path), MOST_ROWS)
    except SystemExit as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def _reader() -> Any:
    """Return launcher's own `rows.py` as a module."""
    spec = importlib.util.spec_from_file_location("launcher_rows", data_folder("jobs") / "rows.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(2, "launcher's own rows.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
