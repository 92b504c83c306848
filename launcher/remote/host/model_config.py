"""What a model on this host says of itself: some keys of its `config.json`, in its folder or in a hub's cache."""

from __future__ import annotations

import glob
import os
from typing import Any

from ..record import strict_json
from ..record.rundir import read_text

MOST_BYTES = 1 << 20


def read(root: str, source: Any, keys: list[str]) -> dict[str, Any] | None:
    """Return the named keys of a model's config; None where it does not lie here, or cannot be read.

    `source` is {"kind", "value"} as in a plan: a `host` path, or the `name` of a model of the hub, `org/name`.
    """
    if not isinstance(source, dict) or not isinstance(source.get("value"), str):
        return None
    written = source["value"]
    if source.get("kind") == "host":
        paths = [os.path.join(os.path.expanduser(written), "config.json")]
    elif source.get("kind") == "name" and written.count("/") == 1:
        paths = [path for cache in _hub_caches(root) for path in _in_hub_cache(cache, written)]
    else:
        return None
    for path in paths:
        try:
            with open(path, "rb") as file:
                told = strict_json.decode(file.read(MOST_BYTES))
        except (OSError, ValueError):
            continue
        if isinstance(told, dict):
            inner = told.get("text_config")
            both = {**told, **(inner if isinstance(inner, dict) else {})}
            return {
                key: _plain(both[key]) for key in keys if isinstance(both.get(key), (bool, int, str, dict))
            }
    return None


def _plain(value: Any) -> Any:
    """Return a value as it is; of a table only what is plain itself."""
    if not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if isinstance(one, (bool, int, str))}


def _hub_caches(root: str) -> list[str]:
    """Return the folders that huggingface_hub may keep models in, as `environment` sets them for a run; nearest first."""
    home = os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(root, "cache", "huggingface"))
    told = os.environ.get("HF_HUB_CACHE")
    return [
        *([told] if told else []),
        os.path.join(home, "hub"),
        os.path.expanduser("~/.cache/huggingface/hub"),
    ]


def _in_hub_cache(cache: str, name: str) -> list[str]:
    """Return the paths of a model's config in a cache: that of its main branch, then the others, the newest first."""
    folder = os.path.join(cache, "models--" + name.replace("/", "--"))
    main = read_text(os.path.join(folder, "refs", "main")) or "-"
    found = glob.glob(os.path.join(glob.escape(folder), "snapshots", "*", "config.json"))
    return sorted(found, key=lambda path: (main in path.split(os.sep), os.lstat(path).st_mtime), reverse=True)
