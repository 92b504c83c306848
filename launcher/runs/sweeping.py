"""Ends and removes on a host what is ours and what no run there needs; what is not ours is named and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from launcher.errors import RunError
from launcher.hosts import Agent
from launcher.planning import release_advice, strangers_on
from launcher.runtimes.docker.container import LABEL_ROOT, LABEL_RUN, name_of
from launcher.values.base import Record
from launcher.values.facts import Facts

if TYPE_CHECKING:
    from launcher.runtimes.docker.engine import Engine, Listed

SWEEPING_S = 60.0
KEPT_S = 3600.0
"""How long a launch lets the container of an ended run be: somebody may want to look into it."""
LEAVING_S = 60.0
"""How long after the end of its run a container may still be up before it counts as left over."""
_DOWN = ("created", "exited", "dead")


class Swept(Record):
    """A thing that was ended, removed or left alone, and why; `run` is whose it is, where that is known."""

    kind: str
    name: str
    run: str | None = None
    did: Literal["ended", "removed", "left"]
    why: str

    @property
    def title(self) -> str:
        """It in a few words, with the last letters of its run."""
        of = f" of {self.run.rpartition('-')[2]}" if self.run and self.kind != "container" else ""
        return f"{self.name if self.name.startswith('pid') else f'{self.kind} {self.name}'}{of}"


class _Told(Record):
    items: list[Swept]
    ended: dict[str, Annotated[float, Field(ge=-1e12, le=1e12)] | None] = {}
    root: str = ""


def sweep(agent: Agent, engine: Engine | None, *, dry_run: bool, kept_s: float = 0.0) -> list[Swept]:
    """Sweep a host, and its engine where one is given; return what was found. With `dry_run` nothing is touched.

    Containers of runs that ended less than `kept_s` seconds ago stay. Raises HostError.
    """
    # What the engine has is looked at before it is asked which runs there are: what comes in between is theirs.
    there = engine.containers() if engine is not None else []
    named = {
        one.id: (one.labels or {}).get(LABEL_RUN, "") for one in there if (one.labels or {}).get(LABEL_ROOT)
    }
    runs = sorted(set(filter(None, named.values())))
    answer = agent.call("sweep", dry_run=dry_run, runs=runs, deadline_s=SWEEPING_S)
    try:
        told = _Told.model_validate(answer.values, strict=True)
    except ValidationError as error:
        raise RunError(f"{agent.host} sent what is no list of what was swept") from error
    ours = [one for one in there if (one.labels or {}).get(LABEL_ROOT) == told.root]
    found = [one for one in ours if _is_dead(one, named[one.id], told, kept_s)]
    if engine is not None and not dry_run:
        for one in found:
            _remove(engine, one)
    why = "its run has ended" if found else ""
    containers = [
        Swept(kind="container", name=name_of(named[one.id]), run=named[one.id], did="removed", why=why)
        for one in found
    ]
    return [*told.items, *containers]


def strangers(facts: Facts) -> list[Swept]:
    """Return who holds cards of a host and is nobody's of ours, with whom to ask."""
    return [
        Swept(
            kind="stranger",
            name=holder.title,
            did="left",
            why=f"holds GPU {gpu.index}: {release_advice(holder, facts)}",
        )
        for gpu in facts.gpus
        for holder in strangers_on(gpu)
    ]


def _is_dead(container: Listed, run: str, told: _Told, kept_s: float) -> bool:
    if run not in told.ended:
        return False
    age_s = told.ended[run]
    return age_s is None or age_s >= (kept_s if container.status in _DOWN else max(kept_s, LEAVING_S))


def _remove(engine: Engine, listed: Listed) -> None:
    from launcher.runtimes.docker.engine import Container

    container = Container(listed.id, listed.status, None)
    if listed.status not in _DOWN:
        engine.stop(container, 0)
    engine.remove(container)


def summary(items: list[Swept]) -> str:
    """Return what a sweep did in one line."""
    words = []
    for did in ("ended", "removed"):
        found = [one for one in items if one.did == did]
        if found:
            more = f", {len(found) - 3} more" if len(found) > 3 else ""
            words.append(f"{did} {len(found)} of ours: {', '.join(one.title for one in found[:3])}{more}")
    return "; ".join(words) or "nothing is left over"
