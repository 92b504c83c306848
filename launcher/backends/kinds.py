"""The kinds of host and the runtimes by name: the package of each is loaded when it is first used. A new one is a line here."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from launcher.values.host_kind import HostKind

PACKAGES = {
    "machine": "launcher.backends.machine",
    "kaggle": "launcher.backends.kaggle",
    "lambda-cloud": "launcher.backends.lambda_cloud",
    "slurm": "launcher.backends.slurm",
}
"""The package of each kind. Its modules NAME_host and NAME_backend, NAME being the package's, have `KIND` and `BACKEND`."""

RUNTIMES = {
    "docker": "launcher.backends.machine.docker",
    "kaggle": "launcher.backends.kaggle.kaggle_runtime",
    "native": "launcher.backends.machine.native",
    "slurm": "launcher.backends.slurm.slurm_runtime",
}
"""The module of each runtime, whose `RUNTIME` is a subclass of `Runtime`. Its name is what `--runtime` and `runtime = …` take."""


@functools.cache
def host_kind(kind: str) -> HostKind:
    """Return what the tables of a kind of host may hold. Raises KeyError for an unknown kind."""
    found: HostKind = load(kind, "host").KIND
    return found


def load(kind: str, part: str) -> ModuleType:
    """Load a module of a kind's package. Raises KeyError for an unknown kind."""
    package = PACKAGES[kind]
    return importlib.import_module(f"{package}.{package.rpartition('.')[2]}_{part}")
