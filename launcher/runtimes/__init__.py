"""How a job runs on a host: one module for each runtime. Only here docker-py.

A runtime is a module or package of this folder that exposes `RUNTIME`, a subclass of `Runtime`; its file name is the
name that `--runtime` and `runtime = …` take. Adding one means adding one file. `runtime.py` says what it must do.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.errors import HostError
from launcher.runtimes.runtime import Runtime
from launcher.values.parsing import unknown_name

if TYPE_CHECKING:
    from launcher.hosts import Desk
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.image import BuildOptions
    from launcher.values.plan import Plan
    from launcher.values.record import Summary

__all__ = ["Runtime", "load", "names", "open_all", "open_for_plan", "open_for_run"]

_SHARED = ("runtime", "making", "inside")
"""The modules of this folder that all runtimes use."""


def names() -> list[str]:
    """Return the names of all runtimes; none of them is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED)


def load(name: str) -> type[Runtime]:
    """Return the runtime of a name. Raises UnknownNameError with the nearest name."""
    if name not in names():
        raise unknown_name("runtime", name, names(), looked_in="the runtimes of this version")
    runtime: type[Runtime] = importlib.import_module(f"{__name__}.{name}").RUNTIME
    return runtime


def open_for_plan(desk: Desk, host: Host, plan: Plan, facts: Facts, build: BuildOptions) -> Runtime:
    """Open the runtime that a plan names; `build` applies to an image or environment that must be made.

    Raises HostError if the host does not have what the runtime needs.
    """
    kind = load(plan.runtime)
    record = kind.record_on(host, facts)
    if record is None:
        words = f"{host.name}: runtime {plan.runtime} cannot be used there"
        raise HostError(host.name, f"{words}\n  what the host has   launch probe --host {host.name}")
    return kind(desk, record, build, facts)


def open_for_run(
    desk: Desk, summary: Summary, build: BuildOptions | None = None, facts: Facts | None = None
) -> Runtime:
    """Open the runtime that a recorded run belongs to. Raises UnknownNameError if this version does not have it."""
    record = summary.recorded_runtime
    return load(record.kind)(desk, record, build, facts)


@contextlib.contextmanager
def open_all(desk: Desk, host: Host, facts: Facts) -> Iterator[list[Runtime]]:
    """Open every runtime that can be used on a host."""
    with contextlib.ExitStack() as stack:
        runtimes = []
        for kind in map(load, names()):
            record = kind.record_on(host, facts)
            if record is not None:
                runtimes.append(stack.enter_context(kind(desk, record, None, facts)))
        yield runtimes
