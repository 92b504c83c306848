"""Prerequisite: something that launches need on this computer or on a host, and whether it is there."""

from __future__ import annotations

from typing import Literal, Self

from launcher.values.base import Record


class Prerequisite(Record):
    """A row of `launch doctor`: its name, its state, what was found, and the next step.

    `lacking`: launches would fail without it. `unknown`: it could not be determined, or only some launches
    need it. `next` has the command to type or the setting to write, on one or more lines.
    """

    name: str
    state: Literal["ok", "lacking", "unknown"]
    found: str
    next: str | None = None

    @classmethod
    def ok(cls, name: str, found: str) -> Self:
        """Return a row for something that is there."""
        return cls(name=name, state="ok", found=found)

    @classmethod
    def lacking(cls, name: str, message: str, mend: str = "") -> Self:
        """Return a row for something that is missing, from a message; its further lines are part of the next step."""
        found, *more = message.split("\n")
        lines = [line.strip() for line in (*more, *mend.split("\n"))]
        return cls(name=name, state="lacking", found=found, next="\n".join(filter(None, lines)) or None)

    @classmethod
    def unknown(cls, name: str, found: str, mend: str | None = None) -> Self:
        """Return a row for something that could not be determined, or that only some launches need."""
        return cls(name=name, state="unknown", found=found, next=mend)
