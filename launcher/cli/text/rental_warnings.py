"""Warnings after any command: rentals past their time limit, or without a process that ends them.

They come from the local ledger, without a request to the provider. Few users rent, so a quick scan of the ledger's
files comes first: the ledger is parsed only if a rental may be open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.rental.open_rentals import OpenRental

_OVER = tuple(f'\n{{"kind": "{kind}"'.encode() for kind in ("ended", "refused", "unseen", "dismissed"))
_EXTRA = b'\n{"kind": "extra"'


def rental_warnings(*, says_all: bool = True) -> list[str]:
    """Return a line for rentals past their time limit and, if `says_all`, a line for rentals that no process here ends.

    One more line names an unreadable ledger file.
    """
    base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
    if not any(map(_may_be_open, Path(base, "launch", "rentals").glob("*.jsonl"))):
        return []
    from launcher.rental.open_rentals import open_rentals

    found = open_rentals()
    past = [one for one in found.rentals if one.is_past]
    left = [one for one in found.rentals if says_all and not one.is_past and not one.is_attended]
    lines = []
    if past:
        lines.append(f"rented beyond its limit, {_cost(past)} so far, for {_runs(past)}   launch reconcile")
    if left:
        lines.append(
            f"rented, {_cost(left)} so far, and no process here ends it: for {_runs(left)}   launch reconcile"
        )
    if found.unreadable:
        lines.append("a rental record cannot be read   launch reconcile")
    return lines


def _may_be_open(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return True
    return _EXTRA in data or not any(kind in data for kind in _OVER)


def _cost(rentals: Sequence[OpenRental]) -> str:
    from launcher.rental.renting import dollars

    return dollars(sum(one.cents for one in rentals))


def _runs(rentals: Sequence[OpenRental]) -> str:
    return ", ".join([one.run for one in rentals[:3]]) + (", …" if len(rentals) > 3 else "")
