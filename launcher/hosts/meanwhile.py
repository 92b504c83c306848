"""Modules that are needed once a host has answered: they load while it is waited for, and take no time of their own then."""

from __future__ import annotations

import contextlib
import importlib
import threading

_names: list[str] = []


def load(*names: str) -> None:
    """Have modules loaded during the next wait for a host."""
    _names.extend(names)


def begin() -> None:
    """Load them now, in a thread: the caller is about to wait. Where one cannot be loaded, whoever needs it is told."""
    if not _names:
        return
    names = [*_names]
    _names.clear()

    def load_all() -> None:
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    threading.Thread(target=load_all, name="load", daemon=True).start()
