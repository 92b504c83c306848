"""The runtimes: how a job runs on a host.

The interface is in `base/runtime.py`, the packages are in `kinds.RUNTIMES`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.runtime import Runtime
from launcher.backends.kinds import RUNTIMES
from launcher.errors import HostError
from launcher.values.parsing import unknown_name

if TYPE_CHECKING:
    from launcher.transport.client.host_client import HostClient
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.record import Summary
    from launcher.values.software.image import BuildOptions

__all__ = ["Runtime", "load", "open_all", "open_for_plan", "open_for_run"]


def load(name: str) -> type[Runtime]:
    """Return the runtime class of a name. Raises UnknownNameError with the nearest name."""
    if name not in RUNTIMES:
        raise unknown_name("runtime", name, RUNTIMES, looked_in="the runtimes of this version")
    runtime: type[Runtime] = importlib.import_module(f"{RUNTIMES[name]}.{name}_runtime").RUNTIME
    return runtime


def open_for_plan(client: HostClient, host: Host, plan: Plan, facts: Facts, build: BuildOptions) -> Runtime:
    """Open the runtime that a plan names; `build` applies to a new image or environment.

    Raises HostError if the host does not support the runtime.
    """
    kind = load(plan.runtime)
    record = kind.record_on(host, facts)
    if record is None:
        words = f"{host.name}: runtime {plan.runtime} cannot be used there"
        raise HostError(host.name, f"{words}\n  the host's facts   launch probe --host {host.name}")
    return kind(client, record, build, facts)


def open_for_run(
    client: HostClient, summary: Summary, build: BuildOptions | None = None, facts: Facts | None = None
) -> Runtime:
    """Open the runtime of a recorded run. Raises UnknownNameError if this version does not have it."""
    record = summary.recorded_runtime
    return load(record.kind)(client, record, build, facts)


@contextlib.contextmanager
def open_all(client: HostClient, host: Host, facts: Facts) -> Iterator[list[Runtime]]:
    """Open each runtime that a host supports."""
    with contextlib.ExitStack() as stack:
        runtimes = []
        for kind in map(load, sorted(RUNTIMES)):
            record = kind.record_on(host, facts)
            if record is not None:
                runtimes.append(stack.enter_context(kind(client, record, None, facts)))
        yield runtimes
