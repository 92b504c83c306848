"""The backend of a host, found by its kind and loaded on first use."""

from __future__ import annotations

import functools

from launcher.backends import kinds
from launcher.backends.base.backend import Backend
from launcher.values.host import Host


def backend_of(host: Host) -> Backend:
    """Return the backend of a host."""
    return _load(host.kind)


@functools.cache
def _load(kind: str) -> Backend:
    backend: Backend = kinds.load(kind, "backend").BACKEND
    return backend
