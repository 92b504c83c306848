"""The machine that a run requests, for backends that let the client choose one before any probe."""

from __future__ import annotations

from typing import NamedTuple

from launcher.values.plan import Finding
from launcher.values.profile import Profile


class MachineChoice(NamedTuple):
    """The machine to request, by the backend's name, the profiles that it may have, and notes for the user.

    The plan is made for the first profile.
    """

    machine: str
    profiles: tuple[Profile, ...]
    notes: tuple[Finding, ...] = ()
