"""What shared code asks of a kind of host. The defaults are those of a machine that one logs in to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from launcher.errors import Lack, LackingError
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.backends.base.planning import Planning
    from launcher.backends.base.probing import Probing
    from launcher.backends.base.running import Running
    from launcher.backends.base.upkeep import Upkeep
    from launcher.transport.client.desk import HostClient
    from launcher.transport.shared_connection import SharedConnection


class Backend:
    """One kind of host. Its parts are loaded when they are first asked."""

    lacks: ClassVar[Mapping[str, Lack]] = {}
    """The verbs that it cannot do."""

    def check_has(self, host: Host, verb: str, run: str = "RUN") -> None:
        """Raise LackingError if hosts of this kind cannot do a verb. Nothing is asked of the host."""
        if (lack := self.lacks.get(verb)) is not None:
            raise LackingError(host.name, verb, lack, run)

    def connect(self, host: Host) -> HostClient:
        """Connect to a host and return its desk. Raises HostError, or UsageError for a kind without anything to connect to."""
        from launcher.transport import connecting

        return connecting.connect(host)

    def open_line(self, host: Host) -> SharedConnection:
        """Return a line to a host, which connects for the first desk. Raises what `connect` raises."""
        from launcher.transport import connecting

        return connecting.open_line(host)

    @property
    def probing(self) -> Probing:
        """What it is asked before a plan."""
        from launcher.backends.base.probing import Probing

        return Probing()

    @property
    def planning(self) -> Planning:
        """What it is asked for a plan."""
        from launcher.backends.base.planning import Planning

        return Planning()

    @property
    def running(self) -> Running:
        """What it is asked for a run."""
        from launcher.backends.base.running import Running

        return Running()

    @property
    def upkeep(self) -> Upkeep:
        """What it is asked beside its runs."""
        from launcher.backends.base.upkeep import Upkeep

        return Upkeep()
