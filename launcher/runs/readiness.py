"""Check the prerequisites for launches on all hosts at once, without changing the hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.runs.host_probes import probe_all
from launcher.values.prerequisite import Prerequisite

if TYPE_CHECKING:
    from launcher.config.lookup import Lookup
    from launcher.values.host import Host


DEADLINE_S = 30.0
"""The time limit for a host's answer, in seconds. A host whose file system or driver hangs reports that after 20 s."""


class Readiness(NamedTuple):
    """The rows of a host, and one line about its cards and software. The line is None if the host was not probed or did not answer."""

    host: str
    summary: str | None
    rows: Sequence[Prerequisite]

    @property
    def ready(self) -> bool:
        """Whether nothing is lacking."""
        return all(row.state != "lacking" for row in self.rows)


def readiness(hosts: Sequence[Host], lookup: Lookup) -> Iterator[Readiness]:
    """Probe hosts, and yield the rows of each when it answers."""
    for probed in probe_all(hosts, DEADLINE_S, job=None):
        backend, facts = backend_of(probed.host), probed.facts
        summary = probed.quota or (backend.probing.describe(facts) if facts is not None else None)
        yield Readiness(probed.host.name, summary, tuple(backend.upkeep.prerequisites(probed, lookup)))


def untrusted(lookup: Lookup) -> list[Readiness]:
    """Return the hosts of an untrusted `launch.toml`, which are not contacted."""
    words = "its table in launch.toml is not trusted yet: the host was not contacted"
    row = Prerequisite.lacking("trust", words, "look at it, then   launch trust")
    return [Readiness(name, None, (row,)) for name in sorted(lookup.untrusted)]
