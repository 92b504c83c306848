"""The kinds of host and the runtimes by name. Each package is loaded on first use.

A new kind is one line here.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

    from launcher.values.host import HostKind


class Package(NamedTuple):
    """A backend: its package, and the runtimes of its hosts.

    For a package NAME, the modules NAME_host and NAME_backend define `KIND` and `BACKEND`. For each runtime
    R, the module R_runtime defines `RUNTIME`.
    """

    path: str
    runtimes: tuple[str, ...] = ()


PACKAGES = {
    "machine": Package("launcher.backends.machine", ("docker", "native")),
    "kaggle": Package("launcher.backends.kaggle", ("kaggle",)),
    "lambda-cloud": Package("launcher.backends.lambda_cloud"),
    "slurm": Package("launcher.backends.slurm", ("slurm",)),
}
"""The backend of each kind, by its name in `kind = …`."""
RUNTIMES = {name: package.path for package in PACKAGES.values() for name in package.runtimes}
"""The package of each runtime, by its name in `--runtime` and `runtime = …`."""


@functools.cache
def host_kind(kind: str) -> HostKind:
    """Return the schema of a kind's tables. Raises KeyError for an unknown kind."""
    found: HostKind = load(kind, "host").KIND
    return found


def own_runtime(kind: str) -> str | None:
    """Return the only runtime of a kind of host; None for a kind with several or none.

    Raises KeyError for an unknown kind.
    """
    names = PACKAGES[kind].runtimes
    return names[0] if len(names) == 1 else None


def load(kind: str, part: str) -> ModuleType:
    """Load a module of a kind's package. Raises KeyError for an unknown kind."""
    path = PACKAGES[kind].path
    return importlib.import_module(f"{path}.{path.rpartition('.')[2]}_{part}")
