"""How a job runs on a host: natively, or in a container. Only here docker-py."""

from __future__ import annotations

from launcher.hosts import Agent
from launcher.planning import engine as usable_engine
from launcher.planning import is_closed
from launcher.runtimes.native import Native
from launcher.runtimes.runtime import Runtime
from launcher.values.engine_access import EngineWay
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.image import BuildOptions
from launcher.values.plan import Plan

__all__ = ["Runtime", "open_runtime", "way_to"]


def open_runtime(agent: Agent, host: Host, plan: Plan, facts: Facts, settings: BuildOptions) -> Runtime:
    """Return the runtime that a plan names, open; `settings` are for an image, or an environment, that must be made. Raises EngineError."""
    way = way_to(host, facts) if plan.runtime == "docker" else None
    if way is None:
        return Native(agent, facts, settings)
    from launcher.runtimes.docker.runtime import Docker  # docker-py costs 0.15 s: only those who need it pay

    return Docker(agent, way, settings)


def way_to(host: Host, facts: Facts) -> EngineWay | None:
    """Return the way to the engine of a host that can be used, None where there is none."""
    found = usable_engine(host, facts)
    if found is None:
        return None
    return EngineWay(name=found.name, socket=found.socket, program=found.program, sudo=is_closed(found))
