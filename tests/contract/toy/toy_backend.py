"""The backend of a toy host: what it lacks, and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.backend import Backend
from launcher.errors import Lack

if TYPE_CHECKING:
    from launcher.backends.toy.toy_planning import ToyPlanning
    from launcher.backends.toy.toy_probing import ToyProbing


class ToyBackend(Backend):
    """A toy."""

    lacks = {"image": Lack("a spooler builds nothing", "on this machine   launch image list --host local")}

    @property
    def probing(self) -> ToyProbing:
        """What is expected there."""
        from launcher.backends.toy.toy_probing import ToyProbing

        return ToyProbing()

    @property
    def planning(self) -> ToyPlanning:
        """What speaks against a plan."""
        from launcher.backends.toy.toy_planning import ToyPlanning

        return ToyPlanning()


BACKEND = ToyBackend()
