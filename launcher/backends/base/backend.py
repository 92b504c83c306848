"""Base class of the backends. The defaults are those of a machine with a login."""

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
    from launcher.transport.client.host_client import HostClient
    from launcher.transport.shared_connection import SharedConnection


class Backend:
    """One kind of host. Its parts are loaded on first use."""

    lacks: ClassVar[Mapping[str, Lack]] = {}
    """The commands that hosts of this kind do not support."""

    def check_has(self, host: Host, verb: str, run: str = "RUN") -> None:
        """Raise LackingError if hosts of this kind do not support a command. The host is not contacted."""
        if (lack := self.lacks.get(verb)) is not None:
            raise LackingError(host.name, verb, lack, run)

    def connect(self, host: Host) -> HostClient:
        """Connect to a host and return its client.

        Raises HostError, or UsageError for a kind of host that accepts no connection.
        """
        from launcher.transport import connecting

        return connecting.connect(host)

    def open_shared_connection(self, host: Host) -> SharedConnection:
        """Return a shared connection to a host, which opens for the first client. Raises the errors of `connect`."""
        from launcher.transport import connecting

        return connecting.open_shared_connection(host)

    @property
    def probing(self) -> Probing:
        """The part used before planning."""
        from launcher.backends.base.probing import Probing

        return Probing()

    @property
    def planning(self) -> Planning:
        """The part used for planning."""
        from launcher.backends.base.planning import Planning

        return Planning()

    @property
    def running(self) -> Running:
        """The part used for runs."""
        from launcher.backends.base.running import Running

        return Running()

    @property
    def upkeep(self) -> Upkeep:
        """The part used outside single runs: batch limits, and files and machines left after runs."""
        from launcher.backends.base.upkeep import Upkeep

        return Upkeep()
