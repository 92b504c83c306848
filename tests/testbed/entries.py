"""Entries in the index of runs, made by hand: for tests whose runs no command has launched."""

import json
import os
from pathlib import Path

LOCAL = {"name": "local"}


def know(run: str, runs: Path, *, home: Path | None = None, **values: object) -> Path:
    """Enter a run whose copy is below `runs` into the index of a home, or of this process; return the file of its entry."""
    data = Path(os.environ["XDG_DATA_HOME"]) if home is None else home / ".local/share"
    file = data / "launch" / "runs" / run / "run.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    entry = {
        "version": 1,
        "run": run,
        "host": LOCAL,
        "root": "a" * 32,
        "launched": 1.0,
        "copies": [str(runs)],
    }
    file.write_text(json.dumps({**entry, **values}))
    return file
