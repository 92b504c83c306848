"""The configuration of a model on this host: some keys of its `config.json`, in its folder or in a hub's cache.

A container's job can write to the root's cache. Only regular files are opened: a pipe could block the probe.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from ..record import strict_json
from ..record.files import read_text
from ..record.safe_open import read_regular
from ..record.strict_json import JsonObject

MAX_BYTES = 1 << 20


def read(root: str, source: Any, keys: list[str]) -> JsonObject | None:
    """Return the named keys of a model's config; None if the model is not on this host, or cannot be read.

    `source` is {"kind", "value"} as in a plan: a `host` path, or the `name` of a model of the hub,
    `org/name`.
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
            config = strict_json.decode(read_regular(path, MAX_BYTES))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            inner = config.get("text_config")
            both = {**config, **(inner if isinstance(inner, dict) else {})}
            return {
                key: _plain(both[key]) for key in keys if isinstance(both.get(key), (bool, int, str, dict))
            }
    return None


def _plain(value: Any) -> Any:
    """Return a value unchanged; of a table, return only its plain values."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if isinstance(inner, (bool, int, str))}


def _hub_caches(root: str) -> list[str]:
    """Return the folders in which huggingface_hub may keep a run's models, the preferred one first."""
    home = os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(root, "cache", "huggingface"))
    chosen = os.environ.get("HF_HUB_CACHE")
    return [
        *([chosen] if chosen else []),
        os.path.join(home, "hub"),
        os.path.expanduser("~/.cache/huggingface/hub"),
    ]


def _in_hub_cache(cache: str, name: str) -> list[str]:
    """Return the paths of a model's config in a cache: its main branch first, then the others, newest first."""
    folder = os.path.join(cache, "models--" + name.replace("/", "--"))
    main = read_text(os.path.join(folder, "refs", "main")) or "-"
    paths = glob.glob(os.path.join(glob.escape(folder), "snapshots", "*", "config.json"))
    return sorted(paths, key=lambda path: (main in path.split(os.sep), os.lstat(path).st_mtime), reverse=True)
