"""How far the items of a batch are, in rows: from its queue and the copies of its runs here. No host is asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.batch.batch_usage import Used
from launcher.batch.queued_item import Item, ItemState
from launcher.copy.runs_folder import runs_folder
from launcher.values.states import State

if TYPE_CHECKING:
    from launcher.batch.item_view import ItemView

WAITS = "waits for"
UNWORKED = "no process works the batch"
_WORDS = {ItemState.CONFIRMED: "begun", ItemState.RESERVED: "launching"}
_ORDER = (
    "succeeded",
    "failed",
    "stopped",
    "stop-incomplete",
    "refused",
    "dropped",
    "running",
    "begun",
    "launching",
    "queued",
)


class ItemRow(NamedTuple):
    """An item as a table shows it. `seen` is when its host was last heard, in seconds since 1970.

    `why` says what it waits for, or why it ended.
    """

    name: str
    run: str | None
    host: str | None
    state: str
    why: str | None
    values: Mapping[str, Any]
    used: Used
    step: int | None = None
    steps: int | None = None
    loss: float | str | None = None
    seen: float | None = None

    @property
    def short(self) -> str:
        """The last part of its run's id."""
        return "-" if self.run is None else self.run.rpartition("-")[2]


def rows_of(
    items: Iterable[Item],
    live: Mapping[int, ItemView] | None = None,
    used: Mapping[int, Used] | None = None,
    *,
    is_worked: bool = True,
) -> list[ItemRow]:
    """Return a row for each item. `live` is what a worker knows of those that it launches and follows, `used` what they have taken.

    Where nobody works the batch, that is what its queued items wait for.
    """
    live, used = live or {}, used or {}
    rows = [_row(item, live.get(item.number), used.get(item.number, Used())) for item in items]
    if is_worked:
        return rows
    waits = (row.state == ItemState.QUEUED and (row.why or WAITS).startswith(WAITS) for row in rows)
    return [row._replace(why=UNWORKED) if one else row for row, one in zip(rows, waits, strict=True)]


def state_of(item: Item, view: ItemView | None = None) -> str:
    """Return how far an item is, in the words of `ps` where its run is there: by its worker's view of it, else by the copy here."""
    if view is not None and view.doing is None and view.state is not None:
        return str(view.state.state)
    if item.state == ItemState.CONFIRMED and item.run is not None and view is None:
        from launcher.copy.mirror import Mirror  # what was not begun has none

        if (last := Mirror(item.run, runs_folder()).state()) is not None:
            return str(last.state)
    return item.outcome or _WORDS.get(item.state, str(item.state))


def _row(item: Item, view: ItemView | None, used: Used) -> ItemRow:
    row = ItemRow(item.name, item.run, item.host, state_of(item, view), item.why, item.values, used)
    if view is not None:
        trouble = view.state and view.state.trouble and view.state.trouble.kind
        row = row._replace(step=view.step, steps=view.steps, loss=view.loss, seen=view.seen)
        why = view.lost_for or trouble or view.waits_for or item.why
        return row._replace(state=view.doing or row.state, why=why)
    if item.run is None or item.state == ItemState.RESERVED:
        return row
    from launcher.copy.mirror import Mirror
    from launcher.copy.move_records import words_of  # what was not begun has neither

    mirror = Mirror(item.run, runs_folder())
    reached = mirror.record.last_step()
    goes_on = words_of(mirror) if item.outcome != State.SUCCEEDED else None
    row = row._replace(step=reached.step, loss=reached.loss, seen=mirror.reached())
    return row._replace(steps=mirror.record.plan().steps, why=goes_on or item.why)


def totals(states: Iterable[str]) -> str:
    """Say how many items are in which state, e.g. `40 items: 12 succeeded, 1 failed, 6 running, 21 queued`."""
    counts = Counter(states)
    words = [f"{counts[state]} {state}" for state in sorted(counts, key=_place)]
    count = counts.total()
    return f"{count} {'item' if count == 1 else 'items'}: {', '.join(words)}"


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else _ORDER.index("running"), state)


def launches(count: int) -> str:
    """Say how many launches there are."""
    return "1 launch" if count == 1 else f"{count} launches"


def values_text(values: Mapping[str, Any]) -> str:
    """Write values of the matrix for people: lr=0.0001, seed=1."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    )
