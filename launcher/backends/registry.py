"""The backend of a host, found by its kind and loaded when it is first used. Another kind is a package and a line here."""

from __future__ import annotations

import functools
import importlib

from launcher.backends.base.backend import Backend
from launcher.values.host import Host

BACKENDS = {
    "machine": "launcher.backends.machine.machine_backend",
    "slurm": "launcher.backends.slurm.slurm_backend",
    "kaggle": "launcher.backends.kaggle.kaggle_backend",
    "lambda-cloud": "launcher.backends.lambda_cloud.lambda_cloud_backend",
}
"""The module of each kind, whose `BACKEND` is a `Backend`."""


def backend_of(host: Host) -> Backend:
    """Return the backend of a host."""
    return _load(host.kind)


@functools.cache
def _load(kind: str) -> Backend:
    backend: Backend = importlib.import_module(BACKENDS[kind]).BACKEND
    return backend
