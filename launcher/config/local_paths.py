"""The paths on this machine among a job's values: `model`, `teacher`, `data.train` and `data.eval`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from launcher.values.job import Job

_PREFIXES = ("host:", "hub:")
_FILE_SUFFIXES = frozenset([
    ".arrow", ".avro", ".bin", ".bz2", ".ckpt", ".csv", ".db", ".feather", ".gguf", ".gz", ".h5", ".hdf5", ".idx", ".jpeg",
    ".jpg", ".json", ".jsonl", ".lmdb", ".md", ".msgpack", ".ndjson", ".npy", ".npz", ".parquet", ".pickle", ".pkl", ".png",
    ".pt", ".pth", ".safetensors", ".sqlite", ".tar", ".tfrecord", ".tgz", ".tsv", ".txt", ".wav", ".xml", ".xz", ".yaml",
    ".yml", ".zip", ".zst",
])  # fmt: skip
"""The suffixes of data and weight files.

Model names may contain dots as well: `Qwen2.5-0.5B`, `whisper.cpp`.
"""


def values_of(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the values of a job that may be paths, by their keys."""
    models = {"model": job.model, "teacher": job.teacher}
    yield from ((key, value) for key, value in models.items() if value is not None)
    for name, value in job.data:
        if value is not None:
            yield f"data.{name}", value


def marked(job: Job, folder_of: Callable[[str], Path]) -> Job:
    """Return a job whose paths begin with `./`: `data/x.bin` becomes `./data/x.bin` if it exists below the key's folder."""
    written = {key: _marked(value, folder_of(key)) for key, value in values_of(job)}
    data = {key.removeprefix("data."): value for key, value in written.items() if key.startswith("data.")}
    models = {key: written.get(key) for key in ("model", "teacher")}
    return job.model_copy(update={**models, "data": job.data.model_copy(update=data)})


def _marked(written: str, folder: Path) -> str:
    if not written or written.startswith((*_PREFIXES, "/", "./", "../", "~")) or written in (".", ".."):
        return written
    return f"./{written}" if os.path.exists(folder / written) else written


def is_unmarked(written: str) -> bool:
    """Return whether a value neither begins with `host:` or `hub:` nor has the form of a URL."""
    return not (written.startswith(_PREFIXES) or "://" in written)


def can_only_be_a_path(written: str) -> bool:
    """Return whether a value can only be a path on this machine, like `data/x.bin` and `data/`."""
    if not is_unmarked(written):
        return False
    return written.endswith("/") or PurePosixPath(written).suffix.lower() in _FILE_SUFFIXES


def could_be_a_name(written: str) -> bool:
    """Return whether a path that exists here, like `./org/name`, could have been meant as the name `org/name`."""
    path = PurePosixPath(written)
    return written.startswith("./") and len(path.parts) == 2 and not can_only_be_a_path(written)
