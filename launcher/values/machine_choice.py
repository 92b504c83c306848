"""The machine that a run asks a backend for, where the backend lets one choose before anything is probed."""

from __future__ import annotations

from typing import NamedTuple

from launcher.values.plan import Finding
from launcher.values.profile import Profile


class MachineChoice(NamedTuple):
    """The machine to ask for, by the backend's name, the profiles of what may come, of which the first is planned, and what to tell the user."""

    machine: str
    profiles: tuple[Profile, ...]
    notes: tuple[Finding, ...] = ()
