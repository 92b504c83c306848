"""Read a job's model and a distillation's teacher from this machine: `config.json` of a folder or of the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.base.json_file import read_json
from launcher.config.resolve import Task
from launcher.planning.script.source import source
from launcher.values.model import Model, read_model


def read_here(task: Task) -> Model | None:
    """Return the job's model; None if it is not on this machine."""
    return _read(task, "model", task.job.model)


def read_teacher(task: Task) -> Model | None:
    """Return the job's teacher, from its key or its setting `teacher`; None if it is missing or not on this machine."""
    if task.job.teacher is not None:
        return _read(task, "teacher", task.job.teacher)
    named = task.job.settings.get("teacher")
    return _read(task, "settings.teacher", named) if isinstance(named, str) and named else None


def _read(task: Task, key: str, written: str | None) -> Model | None:
    if written is None:
        return None
    model = source(written)
    if model.kind == "local":
        return read_model(read_json(task.locate(key, model.value) / "config.json"))
    if model.kind == "name" and model.value.count("/") == 1:
        return read_model(_in_hub_cache(model.value))
    return None


def _in_hub_cache(name: str) -> dict[str, object]:
    """Return the config of a model in the hub's cache, preferably of its main branch; empty if it is not cached."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = cache / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    named = main.read_text().strip() if main.is_file() else ""
    found = list((folder / "snapshots").glob("*/config.json"))
    best = max(found, key=lambda path: (path.parent.name == named, path.lstat().st_mtime), default=None)
    return read_json(best) if best else {}
