"""The orders of a segment: `segment.json` of its payload, written by the client."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..cards.allowed_cards import AllowedCards, read_cards
from ..record import strict_json
from ..record.rundir import RUN_ID
from ..record.safe_open import read_regular

MAX_BYTES = 16 << 20
VERSION = 1


class PayloadError(Exception):
    """Raised for an unusable payload."""


class Archive(NamedTuple):
    """An archive below the inputs, a tar.gz of files for the run's work/: its name and its SHA-256."""

    file: str
    sha256: str


class TorchWheel(NamedTuple):
    """A torch for cards of one capability, e.g. `6.0`: its requirement for pip, and the index that has it.

    `python` is the Python that it was chosen for, e.g. `3.13`; empty for any.
    """

    capability: str
    requirement: str
    url: str
    python: str


class SegmentConfig(NamedTuple):
    """The orders of a segment.

    Without `cards` the run uses no card. If `earlier` is set, it continues from outputs among the inputs.
    """

    run: str
    segment: int
    session_s: float
    place_id: str
    internet: bool
    tree: Optional[Archive]
    earlier: bool
    cards: Tuple[AllowedCards, ...]
    requirements: Tuple[str, ...]
    torch: Tuple[TorchWheel, ...]


def read_orders(payload: str) -> SegmentConfig:
    """Return the orders in a payload's folder. Raises PayloadError."""
    path = os.path.join(payload, "segment.json")
    try:
        record = strict_json.decode(read_regular(path, MAX_BYTES))
        orders = _orders(record)
    except OSError as error:
        raise PayloadError("%s: %s" % (path, error.strerror)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PayloadError("%s: %s" % (path, error)) from None
    if not RUN_ID.fullmatch(orders.run) or orders.session_s <= 0:
        raise PayloadError("%s: it names no run, or no time" % path)
    return orders


def _orders(record: Dict[str, Any]) -> SegmentConfig:
    """Parse a record. Raises ValueError, KeyError, TypeError or AttributeError if it has another shape."""
    if record["version"] != VERSION:
        raise ValueError("version %r is not known to this agent" % record["version"])
    tree = record["tree"]
    return SegmentConfig(
        run=str(record["run"]),
        segment=int(record["segment"]),
        session_s=float(record["session_s"]),
        place_id=str(record["place_id"]),
        internet=record["internet"] is True,
        tree=None if tree is None else Archive(os.path.basename(tree["file"]), str(tree["sha256"])),
        earlier=record.get("earlier") is True,
        cards=tuple(map(read_cards, record["cards"])),
        requirements=_texts(record["requirements"]),
        torch=tuple(
            TorchWheel(
                str(one["capability"]),
                str(one["requirement"]),
                str(one["index"]),
                str(one.get("python") or ""),
            )
            for one in record["torch"]
        ),
    )


def _texts(values: List[Any]) -> Tuple[str, ...]:
    return tuple(str(value) for value in values)
