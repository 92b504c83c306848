"""The card that is imitated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple, Optional, Tuple


class Card(NamedTuple):
    """A card as torch describes it. `cards` is the number of cards that the training sees."""

    name: str
    capability: Tuple[int, int]
    memory_bytes: int
    cards: int


def planned_card() -> Optional[Card]:
    """Return the card of this attempt's plan; None if the plan names no card."""
    folder = os.environ.get("LAUNCH_ATTEMPT")
    if folder is None:
        return None
    said = json.loads(Path(folder, "attempt.json").read_text(encoding="utf-8")).get("card")
    if said is None:
        return None
    major, minor = said["capability"].split(".")
    return Card(said["name"], (int(major), int(minor)), int(said["memory_bytes"]), int(said["count"]))
