"""A dry run's view of a session of a service: what is asked for, and what it is sent."""

from __future__ import annotations

from typing import NamedTuple


class ScriptParts(NamedTuple):
    """What a script is made of, in bytes of its text. Parts are compressed together, so they add up to a little more.

    `tree` is None if the tree is in an archive of its own, whose files have `archived` bytes in all.
    """

    total: int
    stub: int
    agent: int
    records: int
    tree: int | None
    archived: int = 0


class SessionPreview(NamedTuple):
    """What is asked of the service, as it names it and in words, how many hours a session may last, what its script is made of, and the account's hours."""

    machine: str
    title: str
    hours: float
    parts: ScriptParts
    most_bytes: int
    quota: str
