"""Install the imitation of a card in torch, and report at the end whether the script used it."""

from __future__ import annotations

import atexit
from typing import Any

from ..channel import process_channel, send
from ..shield import SOURCE, shielded
from . import autocasts, card_answers, compiling, devices, limits
from .planned_card import planned_card


@shielded
def imitate(torch: Any) -> None:
    """Make torch act as with the card of the plan; `torch` is the module, just imported."""
    card = planned_card()
    if card is None:
        return
    card_answers.install(torch, card)
    devices.install(torch)
    autocasts.install(torch)
    compiling.install(torch, card)
    limits.install(torch)
    devices.moves.count = 0
    atexit.register(_finish)


@shielded
def report() -> None:
    """Report the number of tensors made on the card or moved to it since the last report; skip it if zero."""
    card = planned_card()
    if card is not None and devices.moves.count:
        values = {"rehearsal": {"card": card.name, "moves": devices.moves.count}}
        send("evidence", values=values, source=SOURCE)
        devices.moves.count = 0


@shielded
def _finish() -> None:
    report()
    process_channel.close()
