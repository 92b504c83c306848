"""The backend of a host, found by its kind and loaded on first use."""

from __future__ import annotations

import functools

from launcher.backends import kinds
from launcher.backends.base.backend import Backend
from launcher.values.host import Host


def backend_of(host: Host) -> Backend:
    """Return the backend of a host."""
    return backend_of_kind(host.kind)


@functools.cache
def backend_of_kind(kind: str) -> Backend:
    """Return the backend of a kind of host. Raises KeyError for an unknown kind."""
    backend: Backend = kinds.load(kind, "backend").BACKEND
    return backend
