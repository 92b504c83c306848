"""The words of a failure."""

from __future__ import annotations

from typing import NamedTuple


class CauseText(NamedTuple):
    """Why something failed, and the advice to the user."""

    why: str
    mend: str
