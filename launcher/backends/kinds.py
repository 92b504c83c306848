"""The kinds of host and the runtimes by name: the package of each is loaded when it is first used. A new one is a line here."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

    from launcher.values.host_kind import HostKind


class Package(NamedTuple):
    """A backend: its package, and the runtimes of its hosts.

    With NAME for the package's own name, its modules NAME_host and NAME_backend have `KIND` and `BACKEND`, and a module
    R_runtime for each runtime R has `RUNTIME`.
    """

    path: str
    runtimes: tuple[str, ...] = ()


PACKAGES = {
    "machine": Package("launcher.backends.machine", ("docker", "native")),
    "kaggle": Package("launcher.backends.kaggle", ("kaggle",)),
    "lambda-cloud": Package("launcher.backends.lambda_cloud"),
    "slurm": Package("launcher.backends.slurm", ("slurm",)),
}
"""The backend of each kind, as `kind = …` names it."""
RUNTIMES = {name: package.path for package in PACKAGES.values() for name in package.runtimes}
"""The package of each runtime, as `--runtime` and `runtime = …` name it."""


@functools.cache
def host_kind(kind: str) -> HostKind:
    """Return what the tables of a kind of host may hold. Raises KeyError for an unknown kind."""
    found: HostKind = load(kind, "host").KIND
    return found


def own_runtime(kind: str) -> str | None:
    """Return the one runtime of a kind of host; None if its hosts are machines with several. Raises KeyError for an unknown kind."""
    names = PACKAGES[kind].runtimes
    return names[0] if len(names) == 1 else None


def load(kind: str, part: str) -> ModuleType:
    """Load a module of a kind's package. Raises KeyError for an unknown kind."""
    path = PACKAGES[kind].path
    return importlib.import_module(f"{path}.{path.rpartition('.')[2]}_{part}")
