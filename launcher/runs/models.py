"""What is known here of a job's model: from the `config.json` of a folder that travels, or of a hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.planning import source
from launcher.runs.json_file import read_json
from launcher.runs.resolve import Task
from launcher.values.model import Model, read_model


def read_here(task: Task) -> Model | None:
    """Return what the job's model says of itself; None where it does not lie here."""
    if task.job.model is None:
        return None
    meant = source(task.job.model)
    if meant.kind == "local":
        return read_model(read_json(task.locate("model", meant.value) / "config.json"))
    if meant.kind == "name" and meant.value.count("/") == 1:
        return read_model(_in_hub_cache(meant.value))
    return None


def _in_hub_cache(name: str) -> dict[str, object]:
    """Return the config of a model of the hub that was fetched here, of its main branch if that was; empty where none was."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = cache / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    named = main.read_text().strip() if main.is_file() else ""
    found = list((folder / "snapshots").glob("*/config.json"))
    best = max(found, key=lambda path: (path.parent.name == named, path.lstat().st_mtime), default=None)
    return read_json(best) if best else {}
