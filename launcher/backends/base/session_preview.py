"""A dry run's view of a session: the requested machine and the uploaded script."""

from __future__ import annotations

from typing import NamedTuple


class ScriptParts(NamedTuple):
    """The sizes of a script's parts, in bytes of text.

    They add up to a little more than `total`, because the script compresses them together. `tree` is None if
    the code is in a separate archive, whose files have `archived` bytes in all.
    """

    total: int
    stub: int
    agent: int
    records: int
    tree: int | None
    archived: int = 0


class SessionPreview(NamedTuple):
    """A session's request and upload, as the dry run shows them.

    `machine` is the service's name of the machine and `title` its description. `hours` is the longest
    session, `parts` the sizes of the script, and `quota` the account's remaining hours in words.
    """

    machine: str
    title: str
    hours: float
    parts: ScriptParts
    most_bytes: int
    quota: str
